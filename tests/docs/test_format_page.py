"""docs/format.md names every kind of file that an unfinished recording holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kprof.capture.shared_memory import memory_of
from kprof.recording.launcher.record import session
from kprof.recording.rank.recorder import Recorder
from kprof.recording.retention.retention import Retention

PAGE = Path(__file__).parents[2] / "docs" / "format.md"
# What it becomes, what says whose memory it is, and what is being written.
OTHERS = re.compile(r"(rank|summary)-\d+\.parquet|directory|.*\.tmp")


def kinds() -> list[str]:
    """The first column of the table."""
    section = PAGE.read_text().split("## An unfinished recording\n")[1].split("\n## ")[0]
    return [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")][1:]


def documented() -> list[re.Pattern[str]]:
    names = re.findall(r"`([^`]+)`", " ".join(kinds()))
    return [
        re.compile(re.sub(r"\\-[NK]", r"-\\d+", re.escape(name)).replace(r"\*", ".*"))
        for name in names
    ]


@pytest.mark.parametrize(
    "retention", [Retention(), Retention(ring_bytes=1 << 20), Retention(keep_slowest=2)]
)
def test_every_file_of_an_unfinished_recording_is_in_the_table(
    tmp_path: Path, retention: Retention
) -> None:
    patterns = documented()
    with session(tmp_path / "run.kprof") as directory:
        recorder = Recorder(directory, rank=0, world_size=1, regions=["work"], retention=retention)
        for _ in range(3):
            recorder.launch("kernel", num_blocks=2)
            recorder.step()
        recorder.listen()
        recorder.dump("the test wants it")
        recorder.save()
        recorder.flush()
        folders = directory, memory_of(directory) or directory
        during = {path.name for folder in folders for path in folder.iterdir()}
        recorder.close()
        after = {path.name for folder in folders for path in folder.iterdir()}
    found = {name for name in during | after if not OTHERS.fullmatch(name)}
    assert "rank-00000.arena" in found
    unknown = {n for n in found if not any(each.fullmatch(n) for each in patterns)}
    assert not unknown
