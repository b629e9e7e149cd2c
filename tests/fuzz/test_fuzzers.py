"""A small share of each fuzzer, the same in every run, and what the harness itself must find.

`python tests/fuzz/recordings.py --help` says how to run more.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

import captures
import harness
import imports
import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import recordings
from bytes_damage import copied
from harness import Case, run_cases

import wait_lines
from kprof.capture.directory import Capture
from kprof.capture.losses import describe_losses
from kprof.recording.finishing.recover import recover
from sealing import remove_checksums


@pytest.mark.slow
@pytest.mark.parametrize(("case", "count"), [(imports.case, 60), (wait_lines.case, 40)])
def test_a_share_of_each_fuzzer(case: Case, count: int) -> None:
    result = run_cases(case, "script.py", count, seed=2026)
    assert result.failures == []
    assert result.words.total() == count
    assert len(result.words) > 3


@pytest.mark.slow
def test_what_killed_ranks_left_is_recovered_or_refused() -> None:
    result = run_cases(recordings.case, "script.py", 36, seed=2026, prepare=recordings.prepare)
    assert result.failures == []
    assert any("recovered" in word for word in result.words)


@pytest.mark.parametrize("number", range(4))
def test_events_of_a_part_that_is_gone_are_counted(tmp_path: Path, number: int) -> None:
    kept, _, _ = recordings.left("parts")
    directory = copied(kept, tmp_path / recordings.UNFINISHED)
    gone = sorted(directory.glob("part-*"))[number]
    num_gone = pq.read_metadata(gone).num_rows
    gone.unlink()
    capture = recover(directory)
    (said,) = [each for each in capture.manifest.messages if "events that it wrote" in each]
    assert said.startswith(f"rank {number // 2}: {num_gone:,} of ")
    assert read_ranks(capture.path) == (0, 1)


@pytest.mark.parametrize("number", [1 << 53, (1 << 53) + 1, (1 << 64) - 1])
def test_a_count_that_no_rank_reaches_is_called_damage(tmp_path: Path, number: int) -> None:
    kept, _, _ = recordings.left("plain")
    directory = copied(kept, tmp_path / recordings.UNFINISHED)
    live = directory / "rank-00001.live"
    live.write_bytes(number.to_bytes(8, "little") + live.read_bytes()[8:])
    (directory / "rank-00001.arena").unlink()
    capture = recover(directory)
    assert read_ranks(capture.path) == (0,)
    lost = " ".join(describe_losses(capture.manifest))
    assert "rank 1 of 2 left no events" in lost
    assert ("rank-00001.live is damaged" in lost) == (number > 1 << 53)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b'{"type": "begun", "command": [], "created_utc": "", "num_procs": 65536}',
        # Cut behind its first line.
        b'{"type":"begun","command":[],"created_utc":"","num_procs":2}',
    ],
)
def test_what_cannot_be_read_of_a_recording_is_named(tmp_path: Path, content: bytes | None) -> None:
    kept, num_events, _ = recordings.left("plain")
    directory = copied(kept, tmp_path / recordings.UNFINISHED)
    (directory / "said").unlink()
    if content is not None:
        (directory / "said").write_bytes(content)
    capture = recover(directory)
    assert any("said is damaged, cut or missing" in each for each in capture.manifest.messages)
    assert recordings.num_events_of(Capture.open(capture.path)) == num_events


def test_lines_of_a_journal_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    kept, num_events, _ = recordings.left("graph")
    directory = copied(kept, tmp_path / recordings.UNFINISHED)
    journal = directory / "rank-00001.said"
    lines = journal.read_bytes().replace(b'"table":1', b'"table":7').splitlines()
    assert any(b'"table":7' in line for line in lines)
    journal.write_bytes(b"\n".join([*lines, b'{"type":"note","te']))
    capture = recover(directory)
    assert any(
        re.match("1 of .* lines of rank-00001.said", each) for each in capture.manifest.messages
    )
    assert recordings.num_events_of(Capture.open(capture.path)) == num_events


def read_ranks(path: Path) -> tuple[int, ...]:
    """The ranks of a capture, which opens."""
    return tuple(info.rank for info in Capture.open(path).manifest.ranks)


def failure_of(case: Case) -> str:
    result = run_cases(case, "script.py", 1, seed=5)
    return "".join(result.failures)


def raw(seed: int, number: int, folder: Path) -> str:
    raise IndexError("of the code under test")


def outside_write(seed: int, number: int, folder: Path) -> str:
    (folder.parent / "elsewhere").write_text("outside")
    return "fine"


def outside_removal(seed: int, number: int, folder: Path) -> str:
    link = folder / "link"
    link.symlink_to(folder.parent / "private")
    (link / "secret.txt").unlink()
    return "fine"


def outside_signal(seed: int, number: int, folder: Path) -> str:
    os.kill(os.getpid(), 0)
    return "fine"


def endless(seed: int, number: int, folder: Path) -> str:
    while True:
        np.zeros(1)


def pipe(seed: int, number: int, folder: Path) -> str:
    os.mkfifo(folder / "pipe")
    return (folder / "pipe").read_text()


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (raw, "IndexError: of the code under test"),
        (outside_write, "touched outside of its folder: ['open: "),
        (outside_removal, "touched outside of its folder: ['os.remove: "),
        (outside_signal, "touched outside of its folder: ['os.kill("),
        (endless, "s of processor time"),
        (pipe, "s of clock time"),
    ],
)
def test_the_harness_sees_what_it_looks_for(
    case: Case, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "CPU_S", 0.3)
    monkeypatch.setattr(harness, "HANG_S", 3.0 if case is pipe else 600.0)
    failure = failure_of(case)
    assert failure.startswith("python script.py --seed 5 --only 0\n")
    assert said in failure


# By far more than any command takes: only what would go on for minutes counts here. The bar is in
# captures.py.
FAR_TOO_LONG_CPU_S = 60.0


def test_damaged_captures_are_read_or_refused_in_a_sentence(tmp_path):
    with captures.Fuzzer(20, tmp_path, FAR_TOO_LONG_CPU_S) as fuzzer:
        for number in range(8):
            fuzzer.capture(number)
        # One that once ended in an exception.
        fuzzer._seed = 7
        fuzzer.capture(33)
    tally = fuzzer.tally
    assert tally.failures == []
    assert sum(tally.codes.values()) == 6 * 9
    assert {"exit 0", "exit 1"} == set(tally.codes)
    assert len(tally.damages) > 3


def test_the_fuzzer_sees_what_it_looks_for(tmp_path):
    run = captures.Run(("stats", "run.kprof"), 1, "", "kprof: one line\n", 0.1)
    assert list(captures.faults(run, tmp_path, 1.0)) == []
    (tmp_path / "trace.json").write_text(captures.SECRET)
    bad = captures.Run(("stats", "run.kprof"), 5, "\x1b[2J", "Traceback\nmore\n", 2.0)
    assert len(list(captures.faults(bad, tmp_path, 1.0))) == 5


def test_the_fuzzer_sees_damage_that_no_checksum_finds(tmp_path):
    fuzzer = captures.Fuzzer(1, tmp_path, FAR_TOO_LONG_CPU_S)
    seed, run, output = fuzzer.seeds[1], fuzzer.place / "run.kprof", fuzzer.place / "output"
    output.mkdir(parents=True)
    shutil.copytree(seed, run)
    remove_checksums(run)
    path = run / "rank-00000.parquet"
    table = pq.read_table(path)
    stats = ("stats", str(run), "--json")
    with contextlib.closing(fuzzer):
        fuzzer.compare(0, "none", fuzzer.run(stats), seed)
        assert fuzzer.tally.failures == []
        durations = pc.add(table["duration_ns"], 1)
        at = table.column_names.index("duration_ns")
        pq.write_table(table.set_column(at, table.schema.field(at), durations), path)
        fuzzer.compare(1, "events", fuzzer.run(stats), seed)
    (failure,) = fuzzer.tally.failures
    assert "damage that nobody noticed" in failure
    assert pq.read_table(path)["duration_ns"] == durations


def test_a_slow_command_is_judged_beside_a_sound_capture(tmp_path, monkeypatch):
    """The load that makes both slow is no fault; what takes longer on the damaged one only is."""
    fuzzer = captures.Fuzzer(1, tmp_path, 1.0)
    sound, output = fuzzer.seeds[0], tmp_path / "output"
    output.mkdir()
    cpu_s = {"run.kprof": iter([9.0, 4.5, 6.0]), str(sound): iter([8.0, 4.0, 7.0])}

    def run(command: tuple[str, ...]) -> captures.Run:
        return captures.Run(command, 0, "", "", next(cpu_s[command[1]]))

    monkeypatch.setattr(fuzzer._worker, "run", run)
    command = ("stats", "run.kprof", "--time", "0us..1us")
    done, most_cpu_s = fuzzer._in_turns(command, sound, output)
    assert (done.command, done.cpu_s, most_cpu_s) == (command, 4.5, 5.0)
    assert list(captures.faults(done, output, most_cpu_s)) == []
    assert list(captures.faults(done, output, most_cpu_s - 1.0)) == ["4.50 s of processor time"]
