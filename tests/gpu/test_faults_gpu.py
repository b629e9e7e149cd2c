"""A run that ends with a trap, an illegal address or SIGKILL: what was drained is a capture that says what is missing.
In memory of the host everything outlives it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks.draining import LAUNCHES_PER_CALL, MARKS
from kprof.capture.directory import Capture
from kprof.trace import Trace

ROOT = Path(__file__).parents[2]
WORKLOAD = ROOT / "tests/gpu/run_until_fault.py"
BLOCKS_PER_LAUNCH = 16
DRAIN = ("--drain", "--arena-size", "1MiB")
# Room for all launches of so many calls and the three late ones; each takes 16 chunks.
NUM_CALLS, NUM_LATE_CALLS = 20, 3
IN_HOST_MEMORY = {
    "all": ("--arena", "host", "--arena-size", "4MiB"),
    "ring": ("--ring", "host:4MiB"),
    "drain": ("--drain", "--arena", "host", "--arena-size", "8MiB"),
}


def record(
    output: Path, how: str, device: str, options: Sequence[str] = DRAIN, calls: int = 0
) -> str:
    """Returns what it said."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = ["kprof_cli", "record", *options, "-o", str(output)]
    result = subprocess.run(
        [sys.executable, "-m", *command, "--", "python", str(WORKLOAD), how, device, str(calls)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    # What the runtime's own exit handlers make of a fault is for them to say.
    assert result.returncode == 137 if how == "killed" else result.returncode != 0, result.stderr
    return result.stderr


def check(output: Path) -> None:
    """Whole launches from the first on, and a sentence about the others."""
    trace = Trace.open(output)
    (info,) = trace.ranks
    # A rank that gave up itself has left a message about its loss.
    said = " ".join([info.cut_short, *Capture.open(output).manifest.messages])
    assert "lost" in said or "may lack events" in said
    assert (info.counts.dropped, info.counts.torn_chunks, info.counts.stray_chunks) == (0, 0, 0)
    assert [each.launch for each in info.launches] == list(range(len(info.launches)))
    assert info.launches
    counts = trace.frame("SELECT launch, count(*) AS n FROM events GROUP BY launch")
    marks = {each.launch for each in info.launches if each.kernel == "marks"}
    of_marks = counts[counts["launch"].isin(marks)]
    assert set(of_marks["n"]) == {BLOCKS_PER_LAUNCH * MARKS}
    assert set(of_marks["launch"]) == marks


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["trap", "illegal_address", "killed"])
def test_what_was_drained_outlives_a_fault(
    tmp_path: Path, require_gpus: Callable[[int], None], how: str
) -> None:
    require_gpus(1)
    record(tmp_path / "run.kprof", how, "cuda")
    check(tmp_path / "run.kprof")


def check_all(output: Path, said: str) -> None:
    """Every launch that had finished is there, whole."""
    trace = Trace.open(output)
    (info,) = trace.ranks
    assert "may lack events; no launch is lost" in info.cut_short, said
    num_finished = LAUNCHES_PER_CALL * (NUM_CALLS + NUM_LATE_CALLS)
    kernels = [each.kernel for each in info.launches]
    assert kernels[:num_finished] == ["marks"] * num_finished
    # The launch that faults may have left its only event, or not.
    assert kernels[num_finished:] in ([], ["fault"])
    assert (info.counts.dropped, info.counts.stray_chunks) == (0, 0)
    counts = trace.frame(
        "SELECT launch, count(*) AS n FROM events WHERE kernel = 'marks' GROUP BY launch"
    )
    assert set(counts["n"]) == {BLOCKS_PER_LAUNCH * MARKS}
    assert len(counts) == num_finished


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ["trap", "illegal_address", "killed"])
@pytest.mark.parametrize("kept", IN_HOST_MEMORY)
def test_memory_of_the_host_outlives_the_process(tmp_path: Path, kept: str, how: str) -> None:
    """On the CPU target, a trap and an illegal address are SIGILL and SIGSEGV."""
    said = record(tmp_path / "run.kprof", how, "cpu", IN_HOST_MEMORY[kept], NUM_CALLS)
    check_all(tmp_path / "run.kprof", said)


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["trap", "illegal_address", "killed"])
@pytest.mark.parametrize("kept", IN_HOST_MEMORY)
def test_memory_of_the_host_outlives_a_fault_of_the_gpu(
    tmp_path: Path, require_gpus: Callable[[int], None], kept: str, how: str
) -> None:
    require_gpus(1)
    said = record(tmp_path / "run.kprof", how, "cuda", IN_HOST_MEMORY[kept], NUM_CALLS)
    check_all(tmp_path / "run.kprof", said)
