"""Runs of two processes that hang: `kprof record` names the root, and the capture can be read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kprof.capture.directory import Capture

ROOT = Path(__file__).parents[2]
EXCHANGE = "planted_hangs.processes"


def record(name: str, run: Path) -> subprocess.CompletedProcess[str]:
    """The workload ends when hang.json has what `name` should give, and prints that."""
    places = [ROOT, ROOT / "cli", ROOT / "tests" / "support"]
    path = os.pathsep.join([*map(str, places), os.environ.get("PYTHONPATH", "")])
    recording = ["record", "--hang-after", "1", "-o", str(run)]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "kprof_cli",
            *recording,
            "--",
            "python",
            "-m",
            EXCHANGE,
            name,
            "cpu",
        ],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("killed", "rank 1 has ended and block 0 of rank 0 waits in wait for its slot 0"),
        ("illegal_address", "rank 1 has ended and block 0 of rank 0 waits in wait for its slot 0"),
        ("stopped", "rank 1 is stopped: kill -CONT"),
        ("holds_lock", "ranks 0, 1 wait for each other: block 1 of rank 0 for slot 1 of rank 1"),
        ("never_launches", "rank 1 has not launched call 1 of exchange, in which it sends slot"),
    ],
)
def test_the_root_is_said_and_the_capture_is_whole(
    name: str, sentence: str, tmp_path: Path
) -> None:
    run = tmp_path / "run.kprof"
    done = record(name, run)
    (diagnosis,) = [line for line in done.stdout.splitlines() if sentence in line]
    assert diagnosis in done.stderr
    ranks = {info.rank: info for info in Capture.open(run).manifest.ranks}
    # The arena of a rank that dies is gone with it. Rank 0 ends by itself, with all three calls.
    assert len(ranks[0].launches) == 3
    if name not in ("killed", "illegal_address"):
        assert len(ranks[1].launches) == 3
