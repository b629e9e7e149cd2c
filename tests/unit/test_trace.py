"""The trace: every rank on one clock, its views, its selection, what it refuses, and that no order of rows changes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kprof import analysis, export, report
from kprof.analysis import Summary
from kprof.capture.directory import EVENT_OPEN
from kprof.capture.manifest import Alignment, ClockSegment, RankAlignment
from kprof.errors import ClockError, SelectionError
from kprof.export.grouping import By, grouping
from kprof.trace import Trace, events, views
from kprof.trace.views import EVENT_ID_RANK_SHIFT
from synthetic import TraceBuilder

REGIONS = """
REGION(R_SEND, "send", send, peer:8, slot:24)
REGION(R_WAIT, "wait", wait, peer:8, slot:24)
REGION(R_COPY, "copy", compute, bytes:32)
REGION(R_ROWS, "rows", compute, rows:16, expert:16)
FLOW(R_SEND, R_WAIT)
"""


def rows(trace: Trace, query: str) -> list[tuple[object, ...]]:
    table = trace.sql(query)
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_names_and_payload_fields_become_columns():
    build = TraceBuilder(REGIONS, 1)
    build.span(0, "send", 100, 50, block=3, warp=2, peer=1, slot=7)
    build.span(0, "copy", 200, 1, block=4, bytes=4096)
    build.span(0, "rows", 300, 1, block=5, rows=9, expert=11)

    question = (
        "SELECT region, category, block, warp, peer, slot, bytes, rows, expert FROM events "
        "ORDER BY block"
    )
    assert rows(build.trace(), question) == [
        ("send", "send", 3, 2, 1, 7, None, None, None),
        ("copy", "compute", 4, -1, None, None, 4096, None, None),
        ("rows", "compute", 5, -1, None, None, None, 9, 11),
    ]


def test_offsets_put_the_ranks_on_the_clock_of_the_reference():
    build = TraceBuilder(REGIONS, 2, offsets_ns={1: -1_000_000.0})
    build.span(0, "copy", 500, 10)
    build.span(1, "copy", 1_000_700, 20)

    assert rows(
        build.trace(), "SELECT rank, start_ns, end_ns, duration_ns FROM events ORDER BY rank"
    ) == [
        (0, 500, 510, 10),
        (1, 700, 720, 20),
    ]


def test_drift_is_applied_from_the_start_of_each_segment():
    build = TraceBuilder(REGIONS, 2)
    for start_ns in (0, 1_000_000, 2_000_000, 3_000_000):
        build.span(1, "copy", start_ns, 0)
    segments = (ClockSegment(1_000_000, 100.0, 10.0), ClockSegment(2_000_000, 110.0, -20.0))
    alignment = Alignment("test", 0, (RankAlignment(1, segments, 5.0),))
    shifts = rows(
        build.trace(alignment=alignment),
        "SELECT start_ns - 1000000 * (row_number() OVER (ORDER BY start_ns) - 1) FROM events "
        "ORDER BY start_ns",
    )
    # The first segment reaches back before its own start; the last one forward without end.
    assert shifts == [(90,), (100,), (110,), (90,)]


def test_large_absolute_times_keep_every_nanosecond():
    epoch_ns = 1_790_000_000_123_456_789
    build = TraceBuilder(REGIONS, 1, offsets_ns={0: 0.0})
    build.span(0, "copy", epoch_ns, 1)
    assert build.trace().window_ns() == (epoch_ns, epoch_ns + 1)


def test_a_flow_joins_the_send_to_the_wait_that_it_released():
    build = TraceBuilder(REGIONS, 3)
    build.span(0, "send", 100, 10, block=2, peer=1, slot=7)
    build.span(1, "wait", 50, 90, block=5, peer=0, slot=7)
    build.span(1, "wait", 50, 90, block=6, peer=0, slot=8)
    build.span(2, "wait", 50, 90, block=6, peer=0, slot=7)

    question = "SELECT src, dst, slot, send_block, wait_block, send_end_ns, wait_end_ns FROM flows"
    assert rows(build.trace(), question) == [(0, 1, 7, 2, 5, 110, 140)]
    assert rows(build.trace(), "SELECT (SELECT count(*) FROM flows) AS n") == [(1,)]


def test_an_open_span_releases_nobody():
    build = TraceBuilder(REGIONS, 2)
    build.span(0, "send", 0, flags=EVENT_OPEN, peer=1, slot=0)
    build.span(1, "wait", 0, 20, peer=0, slot=0)
    assert rows(build.trace(), "SELECT * FROM flows") == []


def test_event_ids_are_unique_over_ranks_and_also_read_from_files(tmp_path):
    build = TraceBuilder(REGIONS, 2)
    for rank in (0, 1):
        for i in range(3):
            build.span(rank, "copy", i, 1)
    expected = [(rank << EVENT_ID_RANK_SHIFT) + i for rank in (0, 1) for i in range(3)]
    for trace in (build.trace(), Trace.open(build.write(tmp_path / "run.kprof"))):
        assert [row[0] for row in rows(trace, "SELECT event_id FROM events ORDER BY 1")] == expected


def test_an_unknown_region_is_shown_by_its_number():
    build = TraceBuilder(REGIONS, 1)
    build.span(0, "copy", 0, 1)
    table = build.table().set_column(4, "region", pa.array([999], pa.uint16()))
    trace = Trace.from_table(build.manifest(), table)
    assert rows(trace, "SELECT region, category, kind, region_id FROM events") == [
        ("unknown region 999", "other", "span", 0)
    ]


def test_selection_keeps_what_overlaps_the_time():
    build = TraceBuilder(REGIONS, 1)
    for start_ns in (1000, 1100, 1200):
        build.span(0, "copy", start_ns, 50)
    trace = build.trace().select(time_ns=(140, 210))
    assert rows(trace, "SELECT start_ns FROM events ORDER BY 1") == [(1100,), (1200,)]


def test_selections_add_up_and_leave_the_first_trace_alone():
    build = TraceBuilder(REGIONS, 2)
    for rank in (0, 1):
        for block in (0, 1):
            build.span(rank, "copy", 0, 1, block=block)
    trace = build.trace()
    narrowed = trace.select(ranks=(1,)).select(blocks=(0,))
    assert (trace.num_events(), narrowed.num_events()) == (4, 1)
    assert [info.rank for info in narrowed.ranks] == [1]


def test_an_empty_trace_answers_everything():
    trace = TraceBuilder("", 1).trace()
    assert trace.num_events() == 0
    assert trace.window_ns() == (0, 0)
    assert trace.to_pandas().empty
    assert rows(trace, "SELECT * FROM flows") == []
    assert rows(trace, "SELECT peer, slot, bytes FROM events") == []


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("SELEC 1", "refused: Parser Error"),
        ("SELECT nothing FROM events", "refused: Binder Error"),
        ("SELECT * FROM read_csv('/etc/passwd')", "refused: Permission Error"),
        ("COPY events TO '/tmp/stolen.csv'", "refused: Permission Error"),
        ("SELECT 1/'a'", "refused: Conversion Error"),
        ("", "gives no rows"),
    ],
)
def test_a_query_that_cannot_be_answered_is_one_sentence(query, sentence):
    with pytest.raises(SelectionError, match=sentence) as error:
        TraceBuilder(REGIONS, 1).trace().sql(query)
    assert "\n" not in str(error.value)


def test_quotes_in_paths_and_names_are_text(tmp_path):
    build = TraceBuilder('REGION(A, "it\'s; DROP", compute)', 1)
    build.span(0, "it's; DROP", 0, 1)
    trace = Trace.open(build.write(tmp_path / "o'run.kprof")).select(regions=("it's; DROP",))
    assert rows(trace, "SELECT region FROM events") == [("it's; DROP",)]


def test_cross_rank_numbers_are_refused_without_calibration():
    trace = TraceBuilder(REGIONS, 2, is_aligned=False).trace()
    with pytest.raises(
        ClockError, match=r"launch skew needs the ranks on one clock.*no clock calibration"
    ):
        trace.require_alignment("launch skew")
    # One rank needs none.
    assert TraceBuilder(REGIONS, 1, is_aligned=False).trace().require_alignment("a wait") is None


def test_batches_stream_all_events():
    build = TraceBuilder(REGIONS, 1)
    for i in range(10):
        build.span(0, "copy", i, 1)
    reader = build.trace().batches("SELECT start_ns FROM events ORDER BY start_ns")
    assert [value for batch in reader for value in batch["start_ns"].to_pylist()] == list(range(10))


@pytest.mark.parametrize(
    ("question", "count", "is_joined"),
    [
        ("WITH flows AS (SELECT 7 AS n) SELECT n FROM flows", 7, False),
        ("SELECT count(*) AS n FROM regions WHERE 'join flows' <> ''", 4, False),
        ('SELECT (SELECT count(*) FROM"flows") AS n', 1, True),
        ("SELECT count(*) AS n FROM regions, flows", 4, True),
    ],
)
def test_sends_are_joined_when_a_query_reads_flows_and_not_before(
    question: str, count: int, is_joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is what DuckDB reads, not how the query is written."""
    build = TraceBuilder(REGIONS, 2)
    build.span(0, "send", 0, 10, peer=1, slot=0)
    build.span(1, "wait", 0, 30, peer=0, slot=0)
    trace = build.trace()
    joined = []
    monkeypatch.setattr(Trace, "require_flows", lambda self: joined.append(self) or join(self))
    assert trace.query(question)["n"].to_pylist() == [count]
    assert joined == [trace] * is_joined


join = Trace.require_flows


TIED_REGIONS = """
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
    build = TraceBuilder(TIED_REGIONS, NUM_RANKS)
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
    build = TraceBuilder(TIED_REGIONS, 2)
    for rank, block, start_ns in ((1, 3, 10), (0, 7, 10), (0, 2, 0), (1, 0, 5)):
        build.span(rank, "barrier", start_ns, 50 - start_ns, block=block)
    table = analysis.barrier_waits(Summary.of(build.trace()))
    assert table[["last_rank", "last_block"]].to_numpy().tolist() == [[0, 7]]


def test_of_those_waited_for_equally_long_the_lowest_arrives_last():
    table = analysis.stragglers(Summary.of(tied().trace())).set_index("rank")
    assert table["arrived_last"].tolist() == pytest.approx([2 / 3, 1 / 3, 0])


def test_of_those_that_work_to_the_end_the_lowest_is_the_last_block():
    build = TraceBuilder(TIED_REGIONS, 1)
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
