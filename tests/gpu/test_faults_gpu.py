"""A drained run that ends with a trap, an illegal address or SIGKILL: what was drained is a capture that says what is
missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.draining import MARKS
from kprof.trace import Trace

ROOT = Path(__file__).parents[2]
WORKLOAD = ROOT / "tests/gpu/run_until_fault.py"
BLOCKS_PER_LAUNCH = 16


def record(output: Path, how: str, device: str) -> None:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = ["kprof_cli", "record", "--drain", "--arena-size", "1MiB", "-o", str(output)]
    result = subprocess.run(
        [sys.executable, "-m", *command, "--", "python", str(WORKLOAD), how, device],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    # What the runtime's own exit handlers make of a fault is for them to say.
    assert result.returncode == 137 if how == "killed" else result.returncode != 0, result.stderr


def check(output: Path) -> None:
    """Whole launches from the first on, and a sentence about the others."""
    trace = Trace.open(output)
    (info,) = trace.ranks
    assert "lost" in info.cut_short
    assert (info.counts.dropped, info.counts.torn_chunks, info.counts.stray_chunks) == (0, 0, 0)
    assert [each.launch for each in info.launches] == list(range(len(info.launches)))
    assert info.launches
    counts = trace.frame("SELECT launch, count(*) AS n FROM events GROUP BY launch")
    marks = {each.launch for each in info.launches if each.kernel == "marks"}
    of_marks = counts[counts["launch"].isin(marks)]
    assert set(of_marks["n"]) == {BLOCKS_PER_LAUNCH * MARKS}
    assert set(of_marks["launch"]) == marks


def test_what_was_drained_outlives_sigkill(tmp_path: Path) -> None:
    record(tmp_path / "run.kprof", "killed", "cpu")
    check(tmp_path / "run.kprof")


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["trap", "illegal_address", "killed"])
def test_what_was_drained_outlives_a_fault(
    tmp_path: Path, require_gpus: Callable[[int], None], how: str
) -> None:
    require_gpus(1)
    record(tmp_path / "run.kprof", how, "cuda")
    check(tmp_path / "run.kprof")
