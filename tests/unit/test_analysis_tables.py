"""Every table against a trace whose answer is worked out on paper."""

from __future__ import annotations

import pandas as pd
import pytest

from kprof import analysis
from kprof.analysis import Summary
from kprof.analysis.durations import PERCENTILE_ERROR
from kprof.analysis.findings.parts import waited_once
from kprof.analysis.timeline import Focus, activity
from kprof.capture.directory import EVENT_OPEN
from kprof.errors import ClockError, SelectionError
from kprof.trace import Trace
from synthetic import TraceBuilder

REGIONS = """
REGION(R_SEND,    "send",    send,    peer:8, slot:24)
REGION(R_WAIT,    "wait",    wait,    peer:8, slot:24)
REGION(R_COPY,    "copy",    recv,    bytes:32)
REGION(R_PUT,     "put",     send,    peer:8, bytes:24)
REGION(R_COMPUTE, "compute", compute)
REGION(R_ALL,     "all",     compute)
REGION(R_BARRIER, "barrier", sync)
REGION(R_IDLE,    "idle",    other)
FLOW(R_SEND, R_WAIT)
"""


def builder(num_ranks: int = 2, **options: object) -> TraceBuilder:
    return TraceBuilder(REGIONS, num_ranks, **options)  # type: ignore[arg-type]


def small() -> Trace:
    """Two ranks, one block each.

    rank 0:  [compute 0..100][send to 1: 100..150]
    rank 1:  [compute 20..60][wait for 0: 60..170][copy 170..200]
    """
    build = builder()
    build.span(0, "compute", 0, 100)
    build.span(0, "send", 100, 50, peer=1, slot=0)
    build.span(1, "compute", 20, 40)
    build.span(1, "wait", 60, 110, peer=0, slot=0)
    build.span(1, "copy", 170, 30, bytes=600)
    return build.trace()


def rows(frame: object, *columns: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in frame[list(columns)].itertuples(index=False)]  # type: ignore[index]


def test_stats_counts_and_sums_regions() -> None:
    table = analysis.stats(Summary.of(small()))
    assert rows(table, "region", "category", "count", "total_ns", "max_ns") == [
        ("compute", "compute", 2, 140, 100),
        ("wait", "wait", 1, 110, 110),
        ("send", "send", 1, 50, 50),
        ("copy", "recv", 1, 30, 30),
    ]
    # Two blocks, while a launch runs from 0 to 200 ns.
    assert table["share"].tolist() == pytest.approx([140 / 400, 110 / 400, 50 / 400, 30 / 400])


def test_open_spans_are_in_no_sum() -> None:
    build = builder(1)
    build.span(0, "compute", 0, 10)
    build.span(0, "wait", 10, 0, flags=EVENT_OPEN, peer=0, slot=0)
    trace = build.trace()
    assert analysis.stats(Summary.of(trace))["region"].tolist() == ["compute"]
    assert analysis.waits(Summary.of(trace), "region").empty


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("rank", [(1, 1, 110)]),
        ("block", [(1, 1, 110)]),
        ("region", [("wait", 1, 110)]),
        ("peer", [(0, 1, 110)]),
    ],
)
def test_waits(by: str, expected: list[tuple[object, ...]]) -> None:
    table = analysis.waits(Summary.of(small()), by)  # type: ignore[arg-type]
    assert rows(table, by if by != "block" else "rank", "count", "wait_ns") == expected
    # Of the 200 ns of rank 1's block, or of the 400 ns of both.
    whole = 200 if by in ("rank", "block") else 400
    assert table["share"].tolist() == pytest.approx([110 / whole])


def test_a_block_has_a_share_of_its_own_time_beside_that_of_its_rank() -> None:
    """Block 0 has two warps and block 1 one, in 1000 ns; one of the two waits for 500 ns."""
    build = builder(1)
    for block, warp, wait_ns in ((0, 0, 500), (0, 1, 0), (1, 0, 250)):
        build.span(0, "compute", 0, 1000 - wait_ns, block=block, warp=warp)
        if wait_ns:
            build.span(0, "wait", 1000 - wait_ns, wait_ns, block=block, warp=warp, peer=0, slot=0)
    table = analysis.waits(Summary.of(build.trace()), "block")
    assert table["share"].tolist() == pytest.approx([500 / 3000, 250 / 3000])
    assert table["share_of_block"].tolist() == pytest.approx([500 / 2000, 250 / 1000])


def test_a_wait_that_names_no_rank_is_kept_apart() -> None:
    build = builder()
    build.span(0, "barrier", 0, 70)
    build.span(0, "wait", 70, 30, peer=1, slot=0)
    build.span(0, "wait", 100, 5, peer=255, slot=0)
    trace = build.trace()
    assert rows(analysis.waits(Summary.of(trace), "peer"), "peer", "wait_ns") == [(-1, 75), (1, 30)]
    assert analysis.blame_matrix(Summary.of(trace)).to_numpy().tolist() == [[0, 30], [0, 0]]


def test_blame_matrix_has_a_row_per_recorded_rank_and_a_column_per_rank_of_the_world() -> None:
    build = builder(3, missing_ranks=(1,))
    build.span(0, "wait", 0, 40, peer=1, slot=0)
    build.span(2, "wait", 0, 15, peer=1, slot=1)
    build.span(2, "wait", 20, 7, peer=0, slot=0)
    matrix = analysis.blame_matrix(Summary.of(build.trace()))
    assert matrix.index.tolist() == [0, 2]
    assert matrix.columns.tolist() == [0, 1, 2]
    assert matrix.to_numpy().tolist() == [[0, 40, 0], [7, 15, 0]]
    assert analysis.blame_matrix(Summary.of(build.trace()), "barrier").to_numpy().sum() == 0


@pytest.mark.parametrize(
    ("send_start", "late", "exposed", "violations", "beyond"),
    [
        (100, 40, 70, 0, 0),  # wait 60..170, send starts at 100: 40 late, 70 on its way
        (30, 0, 110, 0, 0),  # sent before the wait began: all of it is transfer
        (170, 110, 0, 0, 0),  # sent when the wait ended
        (175, 110, 0, 1, 0),  # after it ended, but by less than the 10 ns that the clocks may err
        (185, 110, 0, 1, 1),
    ],
)
def test_late_sender(
    send_start: int, late: int, exposed: int, violations: int, beyond: int
) -> None:
    build = builder(bound_ns=10.0)
    build.span(0, "send", send_start, 5, peer=1, slot=3)
    build.span(1, "wait", 60, 110, peer=0, slot=3)
    table = analysis.late_sender(Summary.of(build.trace()))
    columns = ("src", "dst", "flows", "late_sender_ns", "exposed_transfer_ns", "violations")
    assert rows(table, *columns) == [(0, 1, 1, late, exposed, violations)]
    assert table["violations_beyond_bound"].tolist() == [beyond]
    assert table["bound_ns"].tolist() == [10.0]


def test_work_is_the_union_of_useful_spans_less_the_waits() -> None:
    build = builder(1)
    build.span(0, "all", 0, 100)
    build.span(0, "compute", 10, 20)
    build.span(0, "wait", 40, 30, peer=0, slot=0)
    build.span(0, "compute", 90, 40)
    build.span(0, "idle", 200, 50)
    row = analysis.imbalance(Summary.of(build.trace()), "rank").iloc[0]
    assert (row["work_ns"], row["wait_ns"]) == (130 - 30, 30)


def test_imbalance_by_rank_and_block() -> None:
    build = builder(2)
    for block, duration in ((0, 100), (1, 300)):
        build.span(0, "compute", 0, duration, block=block)
    build.span(1, "copy", 0, 600, block=0, bytes=64)
    by_rank = analysis.imbalance(Summary.of(build.trace()), "rank")
    assert rows(by_rank, "rank", "events", "work_ns", "wait_ns", "bytes") == [
        (0, 2, 400, 0, 0),
        (1, 1, 600, 0, 64),
    ]
    assert rows(by_rank, "rank", "work_events", "ns_per_event") == [(0, 2, 200), (1, 1, 600)]
    # Of two ranks each is compared with the other one.
    assert by_rank["work_vs_median"].tolist() == pytest.approx([400 / 600, 600 / 400])
    assert by_rank["load_balance"].tolist() == pytest.approx([200 / 300, 1.0])
    by_block = analysis.imbalance(Summary.of(build.trace()), "block")
    assert rows(by_block, "rank", "block", "work_ns") == [(0, 0, 100), (0, 1, 300), (1, 0, 600)]
    assert by_block["load_balance"].tolist() == pytest.approx([1 / 3, 1.0, 1.0])


def test_load_balance_and_shares_of_waits_are_one_number_in_every_table() -> None:
    """Warps of one block, with nested waits and much time without any block of rank 1."""
    build = builder(3)
    for rank, lengths in enumerate(((100, 300, 50), (40, 40, 60), (10, 20, 900))):
        for warp, length in enumerate(lengths):
            build.span(rank, "compute", 0, length, warp=warp)
    build.span(1, "wait", 40, 100, warp=0, peer=2, slot=0)
    build.span(1, "barrier", 50, 80, warp=0)
    summary = Summary.of(build.trace())
    by_rank = analysis.imbalance(summary, "rank")
    tree = analysis.rank_efficiency(summary)
    assert by_rank["load_balance"].tolist() == pytest.approx(tree["load_balance"].tolist())
    # Three warps on each of three ranks, while a launch runs from 0 to 900 ns.
    assert analysis.block_time_ns(summary) == 9 * 900
    assert analysis.block_time_ns(summary, 1) == 3 * 900
    sheet = analysis.stragglers(summary).set_index("rank")
    # The barrier lies within the wait and counts once where waits are added up.
    assert sheet["wait_share"][1] == pytest.approx(100 / (3 * 900))
    assert waited_once(summary) == pytest.approx(100 / 180)


def test_efficiency_is_the_product_of_its_factors() -> None:
    row = analysis.efficiency(Summary.of(small())).iloc[0]
    # U: 150 and 70; T: 0..200; N: 2.
    assert row["window_ns"] == 200
    assert row["work_ns"] == 220
    assert row["parallel_efficiency"] == pytest.approx(220 / 400)
    assert row["load_balance"] == pytest.approx(110 / 150)
    assert row["communication_efficiency"] == pytest.approx(150 / 200)


def test_time_between_launches_is_not_in_the_window() -> None:
    build = builder(1)
    build.launch(1, "kernel")
    build.launch(2, "kernel")
    build.span(0, "compute", 0, 100, launch=0)
    build.span(0, "compute", 1000, 50, launch=1)
    build.span(0, "compute", 1040, 60, launch=2)
    assert analysis.efficiency(Summary.of(build.trace()))["window_ns"].tolist() == [200]
    per_launch = analysis.launch_efficiency(Summary.of(build.trace()))
    assert rows(per_launch, "ordinal", "window_ns", "work_ns") == [
        (0, 100, 100),
        (1, 50, 50),
        (2, 60, 60),
    ]


def test_launch_skew() -> None:
    build = builder(3, bound_ns=10.0)
    for rank, start in ((0, 100), (1, 160), (2, 400)):
        build.span(rank, "compute", start, 500)
    row = analysis.launch_skew(Summary.of(build.trace())).iloc[0]
    assert (row["skew_ns"], row["last_rank"], row["ranks"]) == (300, 2, 3)
    assert row["bound_ns"] == 10.0  # rank 0 is the reference: only rank 2's bound counts
    assert row["duration_ns"] == 800


def test_offsets_of_clocks_are_taken_out() -> None:
    build = builder(2, offsets_ns={1: -1000.0})
    build.span(0, "compute", 100, 10)
    build.span(1, "compute", 1150, 10)
    assert analysis.launch_skew(Summary.of(build.trace()))["skew_ns"].tolist() == [50]


def test_unmatched_flows() -> None:
    build = builder(2)
    build.span(0, "send", 0, 5, peer=1, slot=0)
    build.span(0, "send", 10, 5, peer=1, slot=1)
    build.span(1, "wait", 0, 5, peer=0, slot=0)
    build.span(1, "wait", 7, 5, peer=0, slot=9)
    build.span(1, "wait", 20, 5, peer=0, slot=8)
    columns = ("sends", "waits", "flows", "unmatched_sends", "unmatched_waits")
    assert rows(analysis.unmatched_flows(Summary.of(build.trace())), *columns) == [(2, 3, 1, 1, 2)]


def test_a_single_rank_needs_no_alignment() -> None:
    build = builder(1, is_aligned=False)
    build.span(0, "compute", 0, 40)
    assert analysis.efficiency(Summary.of(build.trace()))["parallel_efficiency"].tolist() == [1.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "analyse",
    [
        analysis.stats, analysis.waits, analysis.imbalance, analysis.efficiency,
        analysis.rank_efficiency, analysis.launch_efficiency, analysis.launch_skew,
        analysis.late_sender, analysis.blame, analysis.histogram, analysis.critical_path,
        analysis.what_if, analysis.delay_costs,
    ],
)  # fmt: skip
def test_no_events_give_empty_tables(analyse: object) -> None:
    assert len(analyse(Summary.of(builder(2).trace()))) == 0  # type: ignore[operator]


def test_an_interrupted_summary_is_made_again() -> None:
    trace = small()

    def interrupt(what: str, _share: float) -> None:
        if what.startswith("work"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Summary.of(trace, interrupt)
    assert analysis.imbalance(Summary.of(trace), "rank")["work_ns"].tolist() == [150, 70]


@pytest.mark.slow
def test_slices_of_tracks_unite_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    build = builder(3)
    for rank in range(3):
        for block in range(4):
            build.span(rank, "compute", 0, 10 + block, block=block)
            build.span(rank, "wait", 20, 5, block=block, peer=0, slot=block)
    trace = build.trace()
    whole = analysis.imbalance(Summary.of(trace), "block")
    apart = [analysis.imbalance(Summary.of(trace.select(ranks=(n,))), "block") for n in range(3)]
    columns = ["work_ns", "wait_ns", "events"]
    assert pd.concat(apart)[columns].to_numpy().tolist() == whole[columns].to_numpy().tolist()
    for size in (1, 3, 9):
        monkeypatch.setattr("kprof.analysis.summary.EVENTS_PER_SLICE", size)
        monkeypatch.setattr("kprof.capture.rank_summary.EVENTS_PER_SLICE", size)
        assert analysis.imbalance(Summary.of(build.trace()), "block").equals(whole)


def test_slices_of_calls_unite_to_the_same_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    build = builder(2)
    for launch in range(5):
        build.launch(launch, "kernel")
        at = launch * 100
        for slot in range(2):
            build.span(0, "send", at, 5, launch=launch, peer=1, slot=slot)
            build.span(1, "wait", at, 9, launch=launch, peer=0, slot=slot)
    whole = analysis.late_sender(Summary.of(build.trace()))
    assert whole["flows"].tolist() == [10]
    monkeypatch.setattr("kprof.analysis.flow_sums.EVENTS_PER_SLICE", 4)
    assert analysis.late_sender(Summary.of(build.trace())).equals(whole)


def test_unaligned_clocks_refuse_what_compares_ranks_and_nothing_else() -> None:
    build = builder(2, is_aligned=False)
    build.span(0, "send", 0, 5, peer=1, slot=0)
    build.span(1, "wait", 0, 40, peer=0, slot=0)
    summary = Summary.of(build.trace())
    refused = {}
    for name, metric in analysis.all_metrics().items():
        try:
            assert metric(summary).columns.size > 0
        except ClockError as error:
            refused[name] = str(error)
    assert all(" needs the ranks on one clock" in why for why in refused.values())
    assert set(refused) == {
        "calls",
        "critical_path",
        "critical_regions",
        "delay_costs",
        "efficiency",
        "late_sender",
        "launch_efficiency",
        "launch_skew",
        "what_if",
    }
    assert analysis.blame_matrix(summary).to_numpy().sum() == 40
    assert analysis.rank_efficiency(summary)["window_ns"].tolist() == [5, 40]
    with pytest.raises(ClockError, match="one clock"):
        analysis.efficiency(summary)


def test_a_summary_leaves_its_trace_as_it_was() -> None:
    trace = small()
    tables = "SELECT table_name FROM duckdb_tables() ORDER BY 1"
    before = trace.frame(tables)["table_name"].tolist()
    summary = Summary.of(trace)
    analysis.late_sender(summary)
    assert all(len(summary.frame(f"FROM {table}")) for table in ("cells", "flow_sums"))
    assert trace.frame(tables)["table_name"].tolist() == before
    with pytest.raises(SelectionError, match="cells"):
        trace.sql("SELECT * FROM cells")


def test_a_table_is_worked_out_once_and_handed_out_as_a_copy() -> None:
    summary = Summary.of(small())
    first = analysis.blame(summary)
    first["wait_ns"] = 0
    assert analysis.blame(summary)["wait_ns"].sum() > 0
    assert len(summary.results) == 1


def test_percentiles_are_exact_or_say_how_far_they_may_be_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build = builder(1)
    durations = [7 * i * i for i in range(1, 101)]
    for i, duration in enumerate(durations):
        build.span(0, "compute", 100_000 * i, duration)
    trace = build.trace()
    exact = analysis.stats(Summary.of(trace)).iloc[0]
    nearest = [durations[49], durations[94], durations[98]]
    assert exact[["median_ns", "p95_ns", "p99_ns"]].tolist() == nearest
    assert exact["percentile_error"] == 0
    monkeypatch.setattr("kprof.analysis.durations._MOST_EXACT", 99)
    estimated = analysis.stats(Summary.of(trace)).iloc[0]
    assert estimated["percentile_error"] == PERCENTILE_ERROR
    for name, value in zip(("median_ns", "p95_ns", "p99_ns"), nearest, strict=True):
        assert estimated[name] == pytest.approx(value, rel=PERCENTILE_ERROR)
        assert estimated[name] != value


def two_launches() -> Trace:
    """Rank 0 works 60 then waits 40; rank 1 works 100. Then, from 1000 on, both work 50 of 100 and 80 of 100."""
    build = TraceBuilder(REGIONS, 2)
    build.launch(1, "kernel")
    build.span(0, "compute", 0, 60)
    build.span(0, "wait", 60, 40, peer=1, slot=0)
    build.span(1, "compute", 0, 100)
    for rank, worked in ((0, 50), (1, 80)):
        build.span(rank, "compute", 1000, worked, launch=1)
        build.span(rank, "wait", 1000 + worked, 100 - worked, launch=1, peer=rank, slot=1)
    return build.trace()


def test_launch_efficiency_on_paper() -> None:
    first, second = analysis.launch_efficiency(Summary.of(two_launches())).to_dict("records")
    # U = 60, 100 over T = 100 with N = 2: PE 0.8 = LB 80/100 x CommE 100/100.
    names = ("work_ns", "wait_ns", "window_ns", "locations")
    assert [first[name] for name in names] == [160, 40, 100, 2]
    assert first["parallel_efficiency"] == pytest.approx(0.8)
    assert first["load_balance"] == pytest.approx(0.8)
    assert first["communication_efficiency"] == pytest.approx(1.0)
    # U = 50, 80: PE 130/200 = LB 65/80 x CommE 80/100.
    assert second["parallel_efficiency"] == pytest.approx(0.65)
    assert second["load_balance"] == pytest.approx(65 / 80)
    assert second["communication_efficiency"] == pytest.approx(0.8)


def test_histogram_on_paper() -> None:
    """Sixteen buckets an octave: 64 and 128 begin one, 100 is in the tenth after 64 (64 * 2**(10/16) = 98.7)."""
    build = TraceBuilder(REGIONS, 1)
    for at, duration in enumerate((64, 100, 100, 128)):
        build.span(0, "compute", 1000 * at, duration)
    table = analysis.histogram(Summary.of(build.trace()))
    assert table["from_ns"].tolist() == pytest.approx([64, 64 * 2 ** (10 / 16), 128])
    assert table["events"].tolist() == [1, 2, 1]


def test_activity_on_paper() -> None:
    """Four bins of 25 ns: rank 0 works in the first two and 10 ns of the third."""
    table = activity(Summary.of(two_launches()), Focus(0, 100, "the call"), num_bins=4)
    shares = table.set_index(["rank", "category", "bin"])["share"]
    assert shares[0, "compute"].tolist() == pytest.approx([1, 1, 0.4, 0])
    assert shares[0, "wait"].tolist() == pytest.approx([0, 0, 0.6, 1])
    assert shares[1, "compute"].tolist() == pytest.approx([1, 1, 1, 1])
    assert table["from_ns"].drop_duplicates().tolist() == [0, 25, 50, 75]


def test_n_by_n_wait_of_a_barrier_over_all_ranks() -> None:
    build = builder(3)
    for rank, enter in ((0, 10), (1, 70), (2, 40)):
        build.span(rank, "barrier", enter, 75 - enter, block=rank)
    table = analysis.barrier_waits(Summary.of(build.trace()))
    columns = ("scope", "last_rank", "last_block", "instances", "enters", "nxn_wait_ns", "wait_ns")
    assert rows(table, *columns) == [("world", 1, 1, 1, 3, 60 + 0 + 30, 65 + 5 + 35)]


def test_a_barrier_of_the_blocks_of_each_rank() -> None:
    build = builder(2)
    for rank, offset in ((0, 0), (1, 1000)):
        for block, enter in ((0, 10), (1, 50)):
            start = offset + enter
            build.span(rank, "barrier", start, 60 - enter, block=block)
    table = analysis.barrier_waits(Summary.of(build.trace()))
    assert rows(table, "scope", "last_rank", "last_block", "nxn_wait_ns") == [
        ("rank", 0, 1, 40),
        ("rank", 1, 1, 40),
    ]


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


def test_a_lock_lets_its_holders_leave_one_by_one() -> None:
    build = builder(1)
    for block, leave in enumerate((5, 25, 45, 65)):
        build.span(0, "barrier", block, leave - block, block=block)
    assert analysis.barrier_waits(Summary.of(build.trace()))["scope"].unique().tolist() == ["lock"]


def test_ramp_and_tail() -> None:
    build = builder(1)
    build.span(0, "wait", 0, 30, block=0, peer=0, slot=0)
    build.span(0, "compute", 30, 20, block=0)
    build.span(0, "compute", 10, 90, block=1)
    row = analysis.ramp_and_tail(Summary.of(build.trace())).iloc[0]
    assert (row["duration_ns"], row["max_ramp_ns"], row["max_tail_ns"]) == (100, 30, 50)
    assert (row["mean_ramp_ns"], row["mean_tail_ns"], row["last_block"]) == (20.0, 25.0, 1)


def test_a_stall_is_hidden_while_another_track_of_the_sm_works() -> None:
    build = builder(1)
    # hw_id is the block here: two warps of block 0 share an SM.
    build.span(0, "wait", 0, 100, warp=0, peer=0, slot=0)
    build.span(0, "compute", 20, 50, warp=1)
    build.span(0, "wait", 0, 40, block=1, warp=0, peer=0, slot=0)
    table = analysis.stalls(Summary.of(build.trace()))
    assert rows(table, "hw_id", "tracks", "stall_ns", "hidden_ns", "exposed_ns") == [
        (0, 2, 100, 50, 50),
        (1, 1, 40, 0, 40),
    ]


def test_bandwidth_per_link() -> None:
    build = builder(2)
    build.span(0, "put", 0, 100, block=0, peer=1, bytes=4000)
    build.span(0, "put", 50, 100, block=1, peer=1, bytes=2000)
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
    build = builder(3)
    for rank, (for_rank, wait) in enumerate(((2, 80), (2, 60), (0, 10))):
        build.span(rank, "wait", 0, wait, peer=for_rank, slot=0)
        build.span(rank, "compute", wait, 100 - wait)
    table = analysis.stragglers(Summary.of(build.trace()))
    assert rows(table, "rank", "wait_ns", "caused_ns", "work_ns") == [
        (0, 80, 10, 20),
        (1, 60, 0, 40),
        (2, 10, 140, 90),
    ]
    assert table["arrived_last"].tolist() == pytest.approx([1 / 3, 0, 2 / 3])
    assert table["wait_share"].tolist() == pytest.approx([0.8, 0.6, 0.1])
