"""pftrace files in the real trace processor: input, question, expected table.

Times in the questions are relative to the first event of the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kprof.capture.directory import EVENT_CLAMPED
from kprof.export import ExportSummary, OverlayLine, OverlaySlice, write
from kprof.export.model import FIRST_EVENT_NS
from kprof.trace import Trace
from synthetic import TraceBuilder

REGIONS = """
REGION(R_SEND, "dispatch/send", send, peer:8, slot:24)
REGION(R_WAIT, "dispatch/wait-token", wait, peer:8, slot:24)
REGION(R_COPY, "dispatch/copy", compute, bytes:32)
REGION(R_PUT, "put", send, peer:8, bytes:24)
REGION(R_BLOCK, "block", other)
MARK(R_MARK, "counts-known", sync, peer:8)
VALUE(R_LEFT, "tokens-left", other)
FLOW(R_SEND, R_WAIT)
"""

Processor = Callable[[Path], Any]
Exported = Callable[..., Any]

# Rank, block and warp of every slice, from the names of its tracks alone.
SLICES = f"""
    WITH own AS (
        SELECT s.*, t.name AS own_name, p.name AS parent_name, r.name AS root_name
        FROM slice s JOIN track t ON t.id = s.track_id JOIN track p ON p.id = t.parent_id
        LEFT JOIN track r ON r.id = p.parent_id WHERE s.category <> 'overview')
    SELECT ts - {FIRST_EVENT_NS} AS ts, dur, name, depth, category, arg_set_id, id,
        iif(own_name GLOB 'warp *', parent_name, own_name) AS block,
        iif(own_name GLOB 'warp *', own_name, '') AS warp,
        iif(own_name GLOB 'warp *', root_name, parent_name) AS rank
    FROM own"""


def export(trace: Trace, tmp_path: Path, **options: Any) -> ExportSummary:
    return write(trace, tmp_path / "trace.pftrace", **options)


def one_track(spans: list[tuple[str, int, int]]) -> Trace:
    build = TraceBuilder(REGIONS, num_ranks=1)
    for region, start_ns, duration_ns in spans:
        build.span(0, region, start_ns, duration_ns)
    return build.trace()


def test_a_block_that_recorded_nothing_still_has_its_track(exported: Exported) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    build.launch(1, "all_to_all", num_blocks=3)
    build.span(0, "dispatch/copy", 5, 1, block=1, launch=1)
    loaded = exported(build.trace())
    assert loaded.rows(
        f"SELECT block, name FROM ({SLICES}) WHERE category <> 'launch' ORDER BY block"
    ) == [
        ("block 0", "no events recorded"),
        ("block 1", "dispatch/copy"),
        ("block 2", "no events recorded"),
    ]


def test_times_are_on_the_aligned_clock(exported: Exported) -> None:
    build = TraceBuilder(REGIONS, num_ranks=2, offsets_ns={1: -1_000_000.0})
    build.span(0, "dispatch/copy", 100, 10)
    build.span(1, "dispatch/copy", 1_000_150, 10)
    loaded = exported(build.trace())
    assert loaded.rows(
        f"SELECT rank, ts FROM ({SLICES}) WHERE category = 'compute' ORDER BY ts"
    ) == [
        ("Rank 0 (host0, device 0)", 0),
        ("Rank 1 (host0, device 1)", 50),
    ]


@pytest.mark.parametrize(("spans", "expected"), [
    pytest.param([("block", 0, 100), ("dispatch/copy", 0, 50), ("dispatch/send", 50, 50)],
        [("block", 0, 100, 0), ("dispatch/copy", 0, 50, 1), ("dispatch/send", 50, 50, 1)],
        id="nested, equal starts and ends"),
    pytest.param([("dispatch/copy", 10, 10), ("dispatch/send", 0, 10), ("dispatch/wait-token", 20, 5)],
        [("dispatch/send", 0, 10, 0), ("dispatch/copy", 10, 10, 0), ("dispatch/wait-token", 20, 5, 0)],
        id="back to back, unsorted"),
    pytest.param([("block", 0, 100), ("dispatch/copy", 50, 0), ("dispatch/send", 50, 50)],
        [("block", 0, 100, 0), ("dispatch/copy", 50, 0, 2), ("dispatch/send", 50, 50, 1)],
        id="zero length at the start of a neighbour"),
    pytest.param([("dispatch/send", 0, 50), ("dispatch/copy", 50, 0), ("dispatch/copy", 50, 0)],
        [("dispatch/send", 0, 50, 0), ("dispatch/copy", 50, 0, 0), ("dispatch/copy", 50, 0, 0)],
        id="zero length at the end of a neighbour, twice"),
    pytest.param([("block", 0, 60), ("dispatch/copy", 30, 60), ("dispatch/send", 40, 10)],
        [("block", 0, 60, 0), ("dispatch/copy", 30, 60, 0), ("dispatch/send", 40, 10, 1)],
        id="overlap goes to a lane"),
])  # fmt: skip
def test_spans_of_one_track(
    spans: list[tuple[str, int, int]],
    expected: list[tuple[str, int, int, int]],
    exported: Exported,
) -> None:
    loaded = exported(one_track(spans))
    rows = loaded.rows(f"SELECT name, ts, dur, depth FROM ({SLICES}) WHERE category <> 'launch'")
    assert sorted(rows) == sorted(expected)


def test_payload_fields_are_arguments(exported: Exported) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    build.span(0, "dispatch/send", 0, 1, peer=254, slot=(1 << 24) - 2)
    build.span(0, "dispatch/copy", 5, 1, bytes=(1 << 32) - 2)
    build.span(0, "put", 8, 1, peer=0, bytes=9, flags=EVENT_CLAMPED)
    build.span(0, "counts-known", 9, peer=3)
    loaded = exported(build.trace())
    assert loaded.rows(
        """SELECT s.name, a.key, a.display_value FROM slice s JOIN args a USING (arg_set_id)
           WHERE s.category <> 'launch' AND a.key <> 'correlation_id' ORDER BY s.ts, a.key"""
    ) == [
        ("dispatch/send", "debug.peer", "254"),
        ("dispatch/send", "debug.slot", "16777214"),
        ("dispatch/copy", "debug.bytes", "4294967294"),
        ("put", "debug.bytes", "9"),
        ("put", "debug.clamped", "true"),
        ("put", "debug.peer", "0"),
        ("counts-known", "debug.peer", "3"),
    ]


def test_all_slices_of_a_category_have_one_colour(exported: Exported) -> None:
    """The UI takes it from the correlation id; tests/browser looks at it."""
    build = TraceBuilder(REGIONS, num_ranks=1)
    for warp in range(2):
        for start, region in enumerate(("dispatch/copy", "dispatch/send", "put", "dispatch/copy")):
            build.span(0, region, 9 * start, 9, warp=warp)
    loaded = exported(build.trace())
    colors = loaded.rows(
        """SELECT DISTINCT name, extract_arg(arg_set_id, 'correlation_id') FROM slice
           WHERE category <> 'launch' ORDER BY name"""
    )
    assert [(name, color.strip()) for name, color in colors] == [
        ("dispatch/copy", "compute"),
        ("dispatch/send", "send"),
        ("put", "send"),
    ]
    assert colors[1][1] == colors[2][1]


def test_flows_join_a_send_to_the_wait_that_it_released(exported: Exported) -> None:
    build = TraceBuilder(REGIONS, num_ranks=3)
    # A late sender: the wait began first. The second wait came late, the third has no send.
    build.span(1, "dispatch/wait-token", 0, 120, block=4, peer=0, slot=7)
    build.span(0, "dispatch/send", 100, 10, block=2, peer=1, slot=7)
    build.span(0, "dispatch/send", 10, 10, block=3, peer=2, slot=7)
    build.span(2, "dispatch/wait-token", 200, 1, block=5, peer=0, slot=7)
    build.span(2, "dispatch/wait-token", 200, 1, block=6, peer=0, slot=8)
    loaded = exported(build.trace())
    rows = loaded.rows(
        f"""WITH named AS ({SLICES})
            SELECT s.rank, s.block, s.name, w.rank, w.block, w.name, w.ts
            FROM flow f JOIN named s ON s.id = f.slice_out JOIN named w ON w.id = f.slice_in ORDER BY s.block"""
    )
    rank0, rank1, rank2 = (f"Rank {rank} (host0, device {rank})" for rank in range(3))
    assert rows == [
        (rank0, "block 2", "dispatch/send", rank1, "block 4", "released", 120),
        (rank0, "block 3", "dispatch/send", rank2, "block 5", "dispatch/wait-token", 200),
    ]
    # The moment of release lies within the wait and says how long the sender was late.
    assert loaded.rows(
        """SELECT parent.name, a.key, a.int_value FROM slice s JOIN slice parent ON parent.id = s.parent_id
           JOIN args a ON a.arg_set_id = s.arg_set_id
           WHERE s.name = 'released' AND a.key <> 'correlation_id'"""
    ) == [("dispatch/wait-token", "debug.late sender ns", 100)]


def test_a_wait_that_ended_before_its_send_has_no_arrow_and_a_notice(
    tmp_path: Path, processor: Processor
) -> None:
    build = TraceBuilder(REGIONS, num_ranks=2)
    build.span(1, "dispatch/wait-token", 0, 10, peer=0, slot=7)
    build.span(0, "dispatch/send", 100, 10, peer=1, slot=7)
    summary = export(build.trace(), tmp_path)
    assert summary.num_flows == 0
    assert [notice for notice in summary.notices if "1 waits ended before" in notice]
    assert processor(summary.path).import_errors() == []


def test_every_flow_of_a_busy_exchange_arrives(exported: Exported) -> None:
    build = TraceBuilder(REGIONS, num_ranks=4)
    random = np.random.default_rng(1)
    for slot in range(300):
        src, dst = (int(rank) for rank in random.choice(4, 2, replace=False))
        sent = int(random.integers(0, 5000))
        took = int(random.integers(0, 50))
        at = {"block": slot % 7, "warp": 0, "slot": slot}
        build.span(src, "dispatch/send", sent, took, peer=dst, **at)
        waited = int(random.integers(0, 5000))
        took = max(waited, sent) + 60 - waited
        at = {"block": slot % 5, "warp": 1, "slot": slot}
        build.span(dst, "dispatch/wait-token", waited, took, peer=src, **at)
    trace = build.trace()
    loaded = exported(trace)
    question = """
        SELECT s.ts, s.dur, coalesce(p.ts, w.ts), coalesce(p.dur, w.dur) FROM flow f
        JOIN slice s ON s.id = f.slice_out JOIN slice w ON w.id = f.slice_in
        LEFT JOIN slice p ON p.id = w.parent_id AND w.name = 'released' ORDER BY 1, 2, 3, 4"""
    first_ns = trace.window_ns()[0] - FIRST_EVENT_NS
    expected = trace.frame(
        f"""SELECT send_start_ns - {first_ns}, send_end_ns - send_start_ns, wait_start_ns - {first_ns},
            wait_end_ns - wait_start_ns FROM flows ORDER BY 1, 2, 3, 4"""
    )
    assert loaded.rows(question) == [tuple(row) for row in expected.to_numpy().tolist()]
    assert len(expected) == 300


def test_unknown_regions_keep_their_number(exported: Exported) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    build.span(0, "dispatch/copy", 0, 5)
    build.span(0, "dispatch/copy", 10, 5)
    build._rows[-1]["region"] = 77
    loaded = exported(build.trace())
    assert loaded.column("SELECT name FROM slice WHERE category <> 'launch' ORDER BY ts") == [
        "dispatch/copy",
        "unknown region 77",
    ]


def test_a_trace_without_events_loads(exported: Exported) -> None:
    loaded = exported(TraceBuilder(REGIONS, num_ranks=2).trace())
    assert loaded.column("SELECT name FROM process WHERE pid > 0 ORDER BY pid") == [
        "Rank 0 (host0, device 0)",
        "Rank 1 (host0, device 1)",
    ]
    assert loaded.value("SELECT count(*) FROM slice") == 0


def test_a_selection_is_what_is_exported(exported: Exported) -> None:
    build = TraceBuilder(REGIONS, num_ranks=2)
    for rank in range(2):
        for block in range(3):
            build.span(rank, "dispatch/copy", block, 5, block=block)
    loaded = exported(build.trace().select(ranks=(1,), blocks=(0, 2)))
    assert loaded.rows(
        f"SELECT rank, block FROM ({SLICES}) WHERE category = 'compute' ORDER BY ts"
    ) == [
        ("Rank 1 (host0, device 1)", "block 0"),
        ("Rank 1 (host0, device 1)", "block 2"),
    ]
    assert loaded.value("SELECT count(*) FROM process WHERE pid > 0") == 1


def test_marks_are_instants_and_values_are_counters(exported: Exported) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    build.span(0, "counts-known", 40, block=3, peer=1)
    for start_ns, value in ((10, 0), (20, 7), (30, (1 << 32) - 1)):
        build.span(0, "tokens-left", start_ns, block=3)
        build._rows[-1]["payload"] = value
    loaded = exported(build.trace())
    assert loaded.rows("SELECT name, dur, category FROM slice WHERE category <> 'launch'") == [
        ("counts-known", 0, "sync")
    ]
    assert loaded.rows(
        f"""SELECT c.ts - {FIRST_EVENT_NS}, c.value, p.name FROM counter c JOIN track t ON t.id = c.track_id
            JOIN track p ON p.id = t.parent_id WHERE t.name = 'tokens-left' ORDER BY 1"""
    ) == [(0, 0, "block 3"), (10, 7, "block 3"), (20, (1 << 32) - 1, "block 3")]


def test_launches_are_slices_of_their_own_track(exported: Exported) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    build.launch(4, "dispatch", num_blocks=2)
    build.launch(5, "combine", num_blocks=2)
    build.span(0, "dispatch/copy", 10, 5, block=0, launch=4)
    build.span(0, "dispatch/copy", 0, 5, block=1, launch=4)
    # Overlaps the first launch: beside it, not inside.
    build.span(0, "dispatch/copy", 12, 2, block=0, launch=5)
    loaded = exported(build.trace())
    assert loaded.rows(
        f"""SELECT s.name, s.ts - {FIRST_EVENT_NS}, s.dur, s.depth, t.name
            FROM slice s JOIN track t ON t.id = s.track_id WHERE s.category = 'launch' ORDER BY s.ts"""
    ) == [("dispatch", 0, 15, 0, "kernel launches"), ("combine", 12, 2, 0, "kernel launches")]


def test_a_line_of_findings_may_begin_before_the_first_event(exported: Exported) -> None:
    build = TraceBuilder(REGIONS, num_ranks=2)
    for rank in range(2):
        build.span(rank, "dispatch/copy", 1000, 500)
    finding = OverlaySlice("rank 1 is slow", "finding", 900, 1200, {"cost_ns": 300})
    loaded = exported(build.trace(), lines=[OverlayLine(1, "findings", (finding,))])
    question = f"SELECT category, min(ts) - {FIRST_EVENT_NS} FROM slice GROUP BY 1 ORDER BY 1"
    begins = dict(loaded.rows(question))
    assert (begins["finding"], begins["compute"]) == (0, 100)
    cost = "SELECT extract_arg(arg_set_id, 'debug.cost_ns') FROM slice WHERE category = 'finding'"
    assert loaded.value(cost) == 300
