"""Recorded launches in CUDA graphs: each replay has the records that the same launches have in a loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_processes import ROOT, record
from kprof.capture.manifest import RankInfo
from kprof.trace import Trace

pytestmark = pytest.mark.gpu

WORKLOAD = ROOT / "tests/gpu/run_graph_cases.py"
NUM_REPLAYS = 1000
# 16 blocks of 4 warps write n + block records each, 16 blocks with one track write n.
OF_ONE_CALL = 4 * sum(16 * n + 120 for n in (3, 70, 0)) + 16 * (20 + 5)


def recorded(
    output: Path, num_gpus: int, kind: str, mode: str, *, per_flush: int = 100, arena: str = "64MiB"
) -> Trace:
    options = ["--nproc", str(num_gpus), "--arena-size", arena]
    workload = ["python", str(WORKLOAD), kind, mode, str(NUM_REPLAYS), str(per_flush)]
    return record(output, *options, "--", *workload)


def by_launch(trace: Trace) -> list[tuple[object, ...]]:
    table = trace.frame(
        "SELECT rank, kernel, ordinal, block, region, count(*) AS n FROM events GROUP BY ALL "
        "ORDER BY ALL"
    )
    return [tuple(row) for row in table.itertuples(index=False)]


def is_whole(info: RankInfo) -> bool:
    counts = info.counts
    lost = counts.dropped, counts.torn_chunks, counts.torn_records, counts.damaged_heads
    return (*lost, counts.unsplit_launches) == (0, 0, 0, 0, 0)


def test_replays_are_launch_for_launch_what_a_loop_records(
    tmp_path: Path, require_gpus: Callable[[int], None]
) -> None:
    require_gpus(1)
    eager = recorded(tmp_path / "eager.kprof", 1, "counted", "eager", per_flush=20)
    graph = recorded(tmp_path / "graph.kprof", 1, "counted", "graph", per_flush=20)
    assert is_whole(eager.ranks[0])
    assert is_whole(graph.ranks[0])
    assert graph.num_events() == NUM_REPLAYS * OF_ONE_CALL
    assert len(graph.ranks[0].launches) == 5 * NUM_REPLAYS
    assert by_launch(graph) == by_launch(eager)
    work_ns = [median_of_spans_ns(trace) for trace in (eager, graph)]
    assert work_ns[1] == pytest.approx(work_ns[0], rel=0.1), "the same work takes as long"


def median_of_spans_ns(trace: Trace) -> float:
    table = trace.frame("SELECT median(duration_ns) AS ns FROM events WHERE kernel = 'spans'")
    return float(table["ns"][0])


def test_two_graphs_on_two_streams(tmp_path: Path, require_gpus: Callable[[int], None]) -> None:
    require_gpus(1)
    trace = recorded(tmp_path / "run.kprof", 1, "counted", "streams", per_flush=20)
    assert is_whole(trace.ranks[0])
    assert trace.num_events() == 2 * NUM_REPLAYS * OF_ONE_CALL
    assert len(trace.ranks[0].launches) == 2 * 5 * NUM_REPLAYS


def test_what_is_paused_is_not_recorded(
    tmp_path: Path, require_gpus: Callable[[int], None]
) -> None:
    """The graph is captured and replayed during a pause, recorded, and replayed in another pause."""
    require_gpus(1)
    trace = recorded(tmp_path / "run.kprof", 1, "counted", "paused", per_flush=20)
    assert is_whole(trace.ranks[0])
    assert trace.num_events() == NUM_REPLAYS * OF_ONE_CALL


@pytest.mark.parametrize("arena", ["1MiB", "8MiB"])
def test_overflow_is_counted_and_nothing_is_guessed(
    arena: str, tmp_path: Path, require_gpus: Callable[[int], None]
) -> None:
    require_gpus(1)
    trace = recorded(
        tmp_path / "run.kprof", 1, "counted", "graph", per_flush=NUM_REPLAYS, arena=arena
    )
    counts = trace.ranks[0].counts
    assert counts.dropped > 0
    assert counts.recorded + counts.dropped == NUM_REPLAYS * OF_ONE_CALL
    assert (counts.torn_chunks, counts.damaged_heads, counts.unsplit_launches) == (0, 0, 0)
    doubled = trace.frame(
        """SELECT count(*) AS n FROM (SELECT launch, block, warp, payload, count(*) AS times
           FROM events GROUP BY ALL) WHERE times > 1"""
    )
    assert doubled["n"][0] == 0, "a launch holds records of two replays"


@pytest.mark.parametrize("num_gpus", [2, 4, 8])
def test_flows_of_replays_are_joined_as_those_of_a_loop(
    num_gpus: int, tmp_path: Path, require_gpus: Callable[[int], None]
) -> None:
    require_gpus(num_gpus)
    eager = recorded(tmp_path / "eager.kprof", num_gpus, "all_reduce", "eager")
    graph = recorded(tmp_path / "graph.kprof", num_gpus, "all_reduce", "graph")
    for trace in (eager, graph):
        assert all(is_whole(info) for info in trace.ranks)
        assert trace.alignment is not None
        # Each launch of a rank waits for every other rank, and each such wait has its send.
        unjoined = trace.frame(
            """SELECT count(*) AS n FROM events e ANTI JOIN flows f ON f.wait_event_id = e.event_id
               WHERE e.category = 'wait' AND e.peer <> e.rank"""
        )
        bound = max(trace.alignment.bound_between_ns(0, rank) for rank in range(num_gpus))
        early = trace.frame(
            "SELECT count(*) AS n FROM flows WHERE wait_end_ns < send_start_ns - ?", [2 * bound]
        )
        assert (unjoined["n"][0], early["n"][0]) == (0, 0)
    assert {len(info.launches) for info in graph.ranks} == {5 * NUM_REPLAYS}
    assert by_launch(graph) == by_launch(eager)
    median = "SELECT kernel, median(duration_ns) AS ns FROM events GROUP BY kernel ORDER BY kernel"
    print(
        eager.frame(median).merge(graph.frame(median), on="kernel", suffixes=("_eager", "_graph"))
    )
