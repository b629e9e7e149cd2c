"""Kernels of torch.compile in CUDA graphs: every program of every replay is recorded, at a place of its own."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import gpu_processes
from gpu_processes import ROOT
from kprof import abi
from kprof.trace import Trace

WORKLOAD = ROOT / "tests/gpu/run_replayed_programs.py"
NUM_REPLAYS = 60
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="Triton is missing: pip install torch triton",
    ),
]


@cache
def run(kept: Path, *command: str) -> str:
    """What the workload prints. All runs share what Inductor has `kept`: it measures which of several configurations is
    faster, and they add up in other orders and have other grids."""
    said = gpu_processes.run(*command, TORCHINDUCTOR_CACHE_DIR=str(kept))
    return next(line for line in said.splitlines() if line.startswith("value "))


Record = Callable[..., Trace]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replays")


@pytest.fixture
def record(folder: Path, require_gpus: Callable[[int], None]) -> Record:
    """Records a mode of the workload, once with the same options; it prints what it prints without kprof."""
    require_gpus(1)

    def recorded(mode: str, *options: str) -> Trace:
        output = folder / "_".join([mode, *options])
        workload = [str(WORKLOAD), mode, str(NUM_REPLAYS)]
        kprof = ["-m", "kprof_cli", "record", "--inductor", *options, "-o", str(output)]
        plain = run(folder / "kept", *workload)
        assert run(folder / "kept", *kprof, "--", "python", *workload) == plain
        return Trace.open(output)

    return recorded


def replays_of(trace: Trace) -> list[list[int]]:
    """Of each captured launch the numbers of its replays, in order; all their programs are there."""
    events = trace.frame(
        "SELECT launch, count(*) AS n, count(DISTINCT block) AS blocks FROM events GROUP BY launch"
    )
    assert (events["n"] == events["blocks"]).all()
    num_events = dict(zip(events["launch"], events["n"], strict=True))
    found = defaultdict(list)
    for launch in trace.ranks[0].launches:
        assert num_events[launch.launch] == launch.num_blocks
        if launch.captured >= 0:
            found[launch.captured].append(launch.replay)
    return [sorted(replays) for replays in found.values()]


def losses(trace: Trace) -> tuple[int, ...]:
    counts = trace.ranks[0].counts
    damage = counts.torn_chunks, counts.torn_records, counts.stray_chunks, counts.damaged_heads
    return (*damage, counts.overwritten_runs, counts.unsplit_launches)


NOTHING = (0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("options", [(), ("--arena-size", "256MiB"), ("--ring", "256MiB")])
@pytest.mark.parametrize("mode", ["graph", "streams"])
def test_every_replay_is_recorded(record: Record, mode: str, options: tuple[str, ...]) -> None:
    trace = record(mode, *options)
    assert (losses(trace), trace.ranks[0].counts.dropped) == (NOTHING, 0)
    replays = replays_of(trace)
    assert len(replays) >= (2 if mode == "streams" else 1)
    assert all(each == list(range(NUM_REPLAYS)) for each in replays)


def test_every_replay_of_a_cudagraph_tree_is_recorded(record: Record) -> None:
    trace = record("trees")
    assert (losses(trace), trace.ranks[0].counts.dropped) == (NOTHING, 0)
    replays = replays_of(trace)
    # The first steps are not replays: torch warms up, then captures.
    assert replays
    assert all(each == list(range(len(each))) for each in replays)
    assert max(len(each) for each in replays) >= NUM_REPLAYS - 3


def test_replays_share_chunks(record: Record) -> None:
    """61 programs a chunk, and some chunks that are not full."""
    trace = record("graph", "--arena-size", "256MiB")
    used_bytes = trace.ranks[0].arena.used_bytes - abi.CHUNKS_OFFSET
    num_launches = len(trace.ranks[0].launches)
    num_chunks = trace.num_events() // abi.RECORDS_PER_CHUNK + num_launches
    assert used_bytes <= num_chunks * abi.CHUNK_BYTES


def test_replays_that_do_not_fit_are_counted(record: Record) -> None:
    whole = record("graph", "--arena-size", "256MiB")
    small = record("graph", "--arena-size", "256KiB")
    assert losses(small) == NOTHING
    counts = small.ranks[0].counts
    assert counts.dropped > 0
    assert counts.recorded + counts.dropped == whole.num_events()
    assert all(each == list(range(len(each))) for each in replays_of(small))


def test_replays_that_python_does_not_see_overwrite_nothing(record: Record) -> None:
    seen = record("graph", "--arena-size", "256MiB")
    both = record("raw", "--arena-size", "1GiB")
    counts = both.ranks[0].counts
    assert (counts.torn_chunks, counts.dropped, counts.overwritten_runs) == (0, 0, 0)
    assert both.num_events() == seen.num_events()
