"""torchrun starts all ranks again when one has failed: each attempt has a recording of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from in_process import run_kprof
from kprof.capture.directory import Capture
from kprof.recording.finishing.recover import recover

pytestmark = pytest.mark.slow

WORKLOAD = Path(__file__).parent / "workloads" / "restarted.py"
EVENTS_PER_LAUNCH = 100


def test_the_last_attempt_is_the_capture_and_earlier_ones_can_be_recovered(tmp_path: Path) -> None:
    output = tmp_path / "run.kprof"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command = [*launcher, "2", "--max-restarts", "1", str(WORKLOAD)]
    done = run_kprof(["record", "-o", output, "--", *command])
    assert done.returncode == 0, done.stderr
    assert launches_of(output) == {0: 4, 1: 4}
    for rank in (0, 1):
        place = tmp_path / f"run.kprof.rank-{rank}.attempt-1.unfinished"
        assert f"made 3 launches that are not in this capture: kprof recover {place}" in done.stderr
        assert launches_of(recover(place).path) == {rank: 3}


def launches_of(run: Path) -> dict[int, int]:
    ranks = Capture.open(run).manifest.ranks
    assert all(info.counts.recorded == EVENTS_PER_LAUNCH * len(info.launches) for info in ranks)
    return {info.rank: len(info.launches) for info in ranks}
