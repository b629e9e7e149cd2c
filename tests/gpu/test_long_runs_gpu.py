"""On a GPU, from loops and graphs: a ring has the latest calls, --keep-slowest the slowest ones, and an arena that is drained
loses nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.draining import LAUNCHES_PER_CALL, MARKS
from gpu_processes import ROOT, run
from kprof.trace import Trace

WORKLOAD = ROOT / "tests/gpu/run_long_run.py"
NUM_CALLS, SLOW_CALLS = 800, (300, 555, 700)
BLOCKS_PER_LAUNCH = 16


def record(output: Path, kept: str, mode: str, device: str = "cuda") -> Trace:
    slow = ",".join(map(str, SLOW_CALLS))
    run(str(WORKLOAD), str(output), kept, mode, device, str(NUM_CALLS), slow)
    trace = Trace.open(output)
    counts = trace.ranks[0].counts
    assert (counts.dropped, counts.torn_chunks, counts.stray_chunks) == (0, 0, 0)
    assert (counts.damaged_heads, counts.unsplit_launches) == (0, 0)
    assert counts.recorded == BLOCKS_PER_LAUNCH * MARKS * len(trace.ranks[0].launches)
    return trace


def calls_of(trace: Trace) -> list[int]:
    ordinals = [each.ordinal for each in trace.ranks[0].launches]
    return sorted({ordinal // LAUNCHES_PER_CALL for ordinal in ordinals})


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_ring_has_the_latest_calls(
    tmp_path: Path, require_gpus: Callable[[int], None], mode: str
) -> None:
    require_gpus(1)
    trace = record(tmp_path / "run.kprof", "ring", mode)
    num_launches = len(trace.ranks[0].launches)
    # 32 MiB are 32,768 chunks less some heads, and each block of a launch takes one.
    assert BLOCKS_PER_LAUNCH * num_launches >= 32_000
    assert num_launches < LAUNCHES_PER_CALL * NUM_CALLS
    if mode == "eager":
        ordinals = [each.ordinal for each in trace.ranks[0].launches]
        last = LAUNCHES_PER_CALL * NUM_CALLS
        assert ordinals == list(range(last - num_launches, last))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_the_slowest_calls_are_kept(
    tmp_path: Path, require_gpus: Callable[[int], None], mode: str
) -> None:
    require_gpus(1)
    trace = record(tmp_path / "run.kprof", "slowest", mode)
    note = trace.ranks[0].notes[1]
    assert note.startswith(f"the {len(SLOW_CALLS) + 1} slowest of {NUM_CALLS:,} calls: ")
    assert all(f" {call} (" in note for call in SLOW_CALLS)
    if mode == "eager":
        assert set(SLOW_CALLS) < set(calls_of(trace))
        assert len(trace.ranks[0].launches) == LAUNCHES_PER_CALL * (len(SLOW_CALLS) + 1)
    else:
        assert note.endswith("because a graph was replayed")


SECONDS = 10


@pytest.mark.gpu
@pytest.mark.parametrize("options", [(), ("--graph",)])
def test_a_run_longer_than_its_arena_loses_nothing(
    tmp_path: Path, require_gpus: Callable[[int], None], options: tuple[str, ...]
) -> None:
    """160 MB of records through 64 MiB. How long calls take is for the benchmark to say."""
    require_gpus(1)
    output = tmp_path / "result.json"
    lengths = ["--seconds", str(SECONDS), "--plain-seconds", "2", "-o", str(output)]
    run("-m", "benchmarks.draining", "--device", "cuda", *lengths, *options)
    (drained,) = json.loads(output.read_text())["drained"]
    assert drained["recorded"] * 16 > 64 << 20
    assert drained["recorded"] == drained["emitted"]
    assert (drained["dropped"], drained["unsplit_launches"]) == (0, 0)
