"""Barriers, ramps, stalls, bandwidth and the straggler sheet, on paper."""

from __future__ import annotations

import pytest

from kprof import analysis
from kprof.analysis import Summary
from synthetic import TraceBuilder

REGIONS = """
REGION(R_WAIT,    "wait",    wait,    peer:8, slot:24)
REGION(R_WORK,    "work",    compute)
REGION(R_COPY,    "copy",    send,    peer:8, bytes:24)
REGION(R_BARRIER, "barrier", sync)
"""


def rows(frame: object, *columns: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in frame[list(columns)].itertuples(index=False)]  # type: ignore[index]


def test_n_by_n_wait_of_a_barrier_over_all_ranks() -> None:
    build = TraceBuilder(REGIONS, 3)
    for rank, enter in ((0, 10), (1, 70), (2, 40)):
        build.span(rank, "barrier", enter, 75 - enter, block=rank)
    table = analysis.barrier_waits(Summary.of(build.trace()))
    columns = ("scope", "last_rank", "last_block", "instances", "enters", "nxn_wait_ns", "wait_ns")
    assert rows(table, *columns) == [("world", 1, 1, 1, 3, 60 + 0 + 30, 65 + 5 + 35)]


def test_a_barrier_of_the_blocks_of_each_rank() -> None:
    build = TraceBuilder(REGIONS, 2)
    for rank, offset in ((0, 0), (1, 1000)):
        for block, enter in ((0, 10), (1, 50)):
            start = offset + enter
            build.span(rank, "barrier", start, 60 - enter, block=block)
    table = analysis.barrier_waits(Summary.of(build.trace()))
    assert rows(table, "scope", "last_rank", "last_block", "nxn_wait_ns") == [
        ("rank", 0, 1, 40),
        ("rank", 1, 1, 40),
    ]


def test_a_lock_lets_its_holders_leave_one_by_one() -> None:
    build = TraceBuilder(REGIONS, 1)
    for block, leave in enumerate((5, 25, 45, 65)):
        build.span(0, "barrier", block, leave - block, block=block)
    assert analysis.barrier_waits(Summary.of(build.trace()))["scope"].unique().tolist() == ["lock"]


def test_ramp_and_tail() -> None:
    build = TraceBuilder(REGIONS, 1)
    build.span(0, "wait", 0, 30, block=0, peer=0, slot=0)
    build.span(0, "work", 30, 20, block=0)
    build.span(0, "work", 10, 90, block=1)
    row = analysis.ramp_and_tail(Summary.of(build.trace())).iloc[0]
    assert (row["duration_ns"], row["max_ramp_ns"], row["max_tail_ns"]) == (100, 30, 50)
    assert (row["mean_ramp_ns"], row["mean_tail_ns"], row["last_block"]) == (20.0, 25.0, 1)


def test_a_stall_is_hidden_while_another_track_of_the_sm_works() -> None:
    build = TraceBuilder(REGIONS, 1)
    # hw_id is the block here: two warps of block 0 share an SM.
    build.span(0, "wait", 0, 100, warp=0, peer=0, slot=0)
    build.span(0, "work", 20, 50, warp=1)
    build.span(0, "wait", 0, 40, block=1, warp=0, peer=0, slot=0)
    table = analysis.stalls(Summary.of(build.trace()))
    assert rows(table, "hw_id", "tracks", "stall_ns", "hidden_ns", "exposed_ns") == [
        (0, 2, 100, 50, 50),
        (1, 1, 40, 0, 40),
    ]


def test_bandwidth_per_link() -> None:
    build = TraceBuilder(REGIONS, 2)
    build.span(0, "copy", 0, 100, block=0, peer=1, bytes=4000)
    build.span(0, "copy", 50, 100, block=1, peer=1, bytes=2000)
    row = analysis.bandwidth(Summary.of(build.trace())).iloc[0]
    assert (row["rank"], row["peer"], row["bytes"], row["total_ns"], row["busy_ns"]) == (
        0,
        1,
        6000,
        200,
        150,
    )
    assert row["per_track_gb_s"] == pytest.approx(30.0)
    assert row["link_gb_s"] == pytest.approx(40.0)


def test_straggler_sheet() -> None:
    build = TraceBuilder(REGIONS, 3)
    for rank, (for_rank, wait) in enumerate(((2, 80), (2, 60), (0, 10))):
        build.span(rank, "wait", 0, wait, peer=for_rank, slot=0)
        build.span(rank, "work", wait, 100 - wait)
    table = analysis.stragglers(Summary.of(build.trace()))
    assert rows(table, "rank", "wait_ns", "caused_ns", "work_ns") == [
        (0, 80, 10, 20),
        (1, 60, 0, 40),
        (2, 10, 140, 90),
    ]
    assert table["arrived_last"].tolist() == pytest.approx([1 / 3, 0, 2 / 3])
    assert table["wait_share"].tolist() == pytest.approx([0.8, 0.6, 0.1])


def test_a_barrier_is_one_within_the_error_of_the_clocks() -> None:
    """Rank 0 leaves 30 ns before rank 1 entered, as far as clocks with an error of 50 ns can tell."""
    for bound, scope in ((50.0, "world"), (1.0, "lock")):
        build = TraceBuilder('REGION(R_BARRIER, "barrier", sync)', 2, bound_ns=bound)
        build.span(0, "barrier", 0, 970)
        build.span(1, "barrier", 1000, 20)
        table = analysis.barrier_waits(Summary.of(build.trace()))
        assert set(table["scope"]) == {scope}
        if scope == "world":
            assert set(table["last_rank"]) == {1}
