"""What stands beside the spans in a pftrace: marks, values, launches and findings.

Times in the questions are relative to the first event of the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kprof.export import OverlayLine, OverlaySlice, write
from kprof.export.model import FIRST_EVENT_NS
from kprof.trace import Trace
from synthetic import TraceBuilder

REGIONS = """
REGION(R_COPY, "dispatch/copy", compute, bytes:32)
MARK(R_MARK, "counts-known", sync, peer:8)
VALUE(R_LEFT, "tokens-left", other)
"""

Processor = Callable[[Path], Any]


def load(trace: Trace, tmp_path: Path, processor: Processor, **options: Any) -> Any:
    loaded = processor(write(trace, tmp_path / "trace.pftrace", **options).path)
    assert loaded.import_errors() == []
    return loaded


def test_marks_are_instants_and_values_are_counters(tmp_path: Path, processor: Processor) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    build.span(0, "counts-known", 40, block=3, peer=1)
    for start_ns, value in ((10, 0), (20, 7), (30, (1 << 32) - 1)):
        build.span(0, "tokens-left", start_ns, block=3)
        build._rows[-1]["payload"] = value
    loaded = load(build.trace(), tmp_path, processor)
    assert loaded.rows("SELECT name, dur, category FROM slice WHERE category <> 'launch'") == [
        ("counts-known", 0, "sync")
    ]
    assert loaded.rows(
        f"""SELECT c.ts - {FIRST_EVENT_NS}, c.value, p.name FROM counter c JOIN track t ON t.id = c.track_id
            JOIN track p ON p.id = t.parent_id WHERE t.name = 'tokens-left' ORDER BY 1"""
    ) == [(0, 0, "block 3"), (10, 7, "block 3"), (20, (1 << 32) - 1, "block 3")]


def test_launches_are_slices_of_their_own_track(tmp_path: Path, processor: Processor) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    build.launch(4, "dispatch", num_blocks=2)
    build.launch(5, "combine", num_blocks=2)
    build.span(0, "dispatch/copy", 10, 5, block=0, launch=4)
    build.span(0, "dispatch/copy", 0, 5, block=1, launch=4)
    # Overlaps the first launch: beside it, not inside.
    build.span(0, "dispatch/copy", 12, 2, block=0, launch=5)
    loaded = load(build.trace(), tmp_path, processor)
    assert loaded.rows(
        f"""SELECT s.name, s.ts - {FIRST_EVENT_NS}, s.dur, s.depth, t.name
            FROM slice s JOIN track t ON t.id = s.track_id WHERE s.category = 'launch' ORDER BY s.ts"""
    ) == [("dispatch", 0, 15, 0, "kernel launches"), ("combine", 12, 2, 0, "kernel launches")]


def test_findings_are_slices_above_the_blocks(tmp_path: Path, processor: Processor) -> None:
    build = TraceBuilder(REGIONS, num_ranks=2)
    for rank in range(2):
        build.span(rank, "dispatch/copy", 1000, 500)
    sentence = "block 3 of rank 1 got <b>three</b> tokens"
    finding = OverlaySlice(
        sentence, "finding", 900, 1200, {"remedy": "spread them", "cost_ns": 300}
    )
    loaded = load(
        build.trace(), tmp_path, processor, lines=[OverlayLine(1, "findings", (finding,))]
    )
    assert loaded.rows(
        f"""SELECT s.name, s.category, s.ts - {FIRST_EVENT_NS}, s.dur, t.name, root.name
            FROM slice s JOIN track t ON t.id = s.track_id JOIN track root ON root.id = t.parent_id
            WHERE s.category = 'finding'"""
    ) == [(sentence, "finding", 0, 300, "findings", "Rank 1 (host0, device 1)")]
    # The line begins before the first event, and all times still agree.
    assert (
        loaded.value(f"SELECT min(ts) - {FIRST_EVENT_NS} FROM slice WHERE category = 'compute'")
        == 100
    )
    assert loaded.rows(
        "SELECT key, display_value FROM args WHERE key IN ('debug.remedy', 'debug.cost_ns') ORDER "
        "BY key"
    ) == [
        ("debug.cost_ns", "300"),
        ("debug.remedy", "spread them"),
    ]
