"""A capture gives the same report and the same trace each time: nothing depends on the order in which rows are read.

DuckDB's threads hand rows over in any order, so wherever several rows would do, one has to be named.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kprof import analysis, export, report
from kprof.analysis import Summary
from kprof.export.grouping import By, grouping
from kprof.trace import Trace, events, views
from synthetic import TraceBuilder

REGIONS = """
REGION(S, "dispatch/send", send, peer:8, slot:8, bytes:16)
REGION(W, "dispatch/wait", wait, peer:8, slot:8)
REGION(C, "combine/copy", compute, bytes:32)
REGION(B, "barrier", sync)
FLOW(S, W)
"""
NUM_RANKS = 3
NUM_BLOCKS = 3


def tied(num_launches: int = 4) -> TraceBuilder:
    """Every rank and block does the same at the same time; the last ones are written first."""
    build = TraceBuilder(REGIONS, NUM_RANKS)
    for launch in reversed(range(num_launches)):
        build.launch(launch, "all_to_all", num_blocks=NUM_BLOCKS)
        for rank in reversed(range(NUM_RANKS)):
            for block in reversed(range(NUM_BLOCKS)):
                fill_block(build, rank, block, launch)
    return build


def fill_block(build: TraceBuilder, rank: int, block: int, launch: int) -> None:
    place = {"rank": rank, "block": block, "launch": launch}
    start_ns = 1000 * launch
    for peer in reversed(range(NUM_RANKS)):
        if peer != rank:
            ends = {"peer": peer, "slot": block}
            build.span(region="dispatch/send", start_ns=start_ns, duration_ns=20, **place, **ends)
            build.span(
                region="dispatch/wait", start_ns=start_ns + 20, duration_ns=80, **place, **ends
            )
    build.span(region="combine/copy", start_ns=start_ns + 100, duration_ns=200, **place, bytes=64)
    build.span(region="barrier", start_ns=start_ns + 300, duration_ns=80, **place)


def test_of_those_that_enter_a_barrier_at_once_the_lowest_is_the_last_one():
    table = analysis.barrier_waits(Summary.of(tied().trace()))
    assert table[["last_rank", "last_block", "instances", "enters"]].to_numpy().tolist() == [
        [0, 0, 4, 4 * NUM_RANKS * NUM_BLOCKS]
    ]


def test_a_barrier_is_charged_to_a_block_of_its_last_rank():
    """The rank and the block are those of one event."""
    build = TraceBuilder(REGIONS, 2)
    for rank, block, start_ns in ((1, 3, 10), (0, 7, 10), (0, 2, 0), (1, 0, 5)):
        build.span(rank, "barrier", start_ns, 50 - start_ns, block=block)
    table = analysis.barrier_waits(Summary.of(build.trace()))
    assert table[["last_rank", "last_block"]].to_numpy().tolist() == [[0, 7]]


def test_of_those_waited_for_equally_long_the_lowest_arrives_last():
    table = analysis.stragglers(Summary.of(tied().trace())).set_index("rank")
    assert table["arrived_last"].tolist() == pytest.approx([2 / 3, 1 / 3, 0])


def test_of_those_that_work_to_the_end_the_lowest_is_the_last_block():
    build = TraceBuilder(REGIONS, 1)
    build.span(0, "dispatch/wait", 0, 90, block=3, peer=0, slot=0)
    for block in range(8, 0, -1):
        build.span(0, "combine/copy", 0, 80, block=block)
    table = analysis.ramp_and_tail(Summary.of(build.trace()))
    assert table["last_block"].tolist() == [1]


def test_a_track_that_spends_the_same_time_in_several_roles_has_the_first_one():
    roles = ("reduce", "load", "store", "apply", "wait")
    build = TraceBuilder("\n".join(f'REGION(R{r}, "{r}/tile", compute)' for r in roles), 1)
    for i, role in enumerate(roles):
        build.span(0, f"{role}/tile", 50 * i, 50)
    by_role = grouping(build.trace(), By.ROLE)
    assert by_role.group_name(0, 0) == "apply"


def test_the_order_of_rows_does_not_change_the_report_nor_the_trace(tmp_path, monkeypatch):
    build = tied(num_launches=3)
    traces = [read_in_order(build, seed, monkeypatch) for seed in range(2)]
    first, second = (results(trace, tmp_path / f"{i}.json") for i, trace in enumerate(traces))
    assert first == second


def read_in_order(build: TraceBuilder, seed: int, monkeypatch: pytest.MonkeyPatch) -> Trace:
    """The trace of the same events, which keep their ids, from a table in another order."""
    numbered, database = views._with_row_numbers, events.locked_database
    order = np.random.default_rng(seed).permutation(len(build.table()))
    with monkeypatch.context() as patch:
        patch.setattr(views, "_with_row_numbers", lambda table: numbered(table).take(order))
        patch.setattr(events, "locked_database", lambda files: database(files, num_threads=16))
        return build.trace()


def results(trace: Trace, output: Path) -> tuple[bytes, bytes]:
    export.write(trace, output)
    return report.to_json(report.build(trace)), output.read_bytes()
