"""Where the viewer opens: the slice that a link selects is one slice, with an arrow where there are arrows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kprof import analysis
from kprof.analysis import Summary
from kprof.export import ExportSummary, write
from kprof.export.links import DeepLink, PinnedTrack
from kprof.report.opening import Place, busiest_place, link_to, opening_place, write_to_view
from synthetic import TraceBuilder

REGIONS = """
REGION(R_SEND, "send", send, peer:8, slot:24)
REGION(R_WAIT, "wait", wait, peer:8, slot:24)
REGION(R_COPY, "copy", compute)
FLOW(R_SEND, R_WAIT)
"""
SELECTED = """
    SELECT s.name, t.name, (SELECT count(*) FROM flow WHERE slice_in = s.id) FROM slice s
    LEFT JOIN track t ON t.id = s.track_id WHERE s.ts = {} AND s.dur = {}"""

Processor = Callable[[Path], Any]


def message(
    build: TraceBuilder, slot: int, sent: int, waited: int, arrived: int, block: int = 0
) -> None:
    """Rank 0 sends to a block of rank 1."""
    build.span(0, "send", sent, 10, block=slot, peer=1, slot=slot)
    build.span(1, "wait", waited, arrived - waited, block=block, peer=0, slot=slot)


def exported(build: TraceBuilder, tmp_path: Path) -> ExportSummary:
    return write(build.trace(), tmp_path / "run.pftrace", force=True)


def selected(link: DeepLink, summary: ExportSummary, processor: Processor) -> list[Any]:
    assert link.selected is not None
    rows: list[Any] = processor(summary.path).rows(SELECTED.format(*link.selected))
    return rows


# Of two messages to blocks 0 and 1: sent, waited, arrived.
LATE = ((100, 0, 150), (0, 200, 210))
LONG = ((0, 20, 300), (0, 31, 40))


@pytest.mark.parametrize(
    ("messages", "has_twin", "place", "expected"),
    [
        # The end of a wait for a late sender.
        (LATE, False, Place(0, 300, ((1, 0),)), ("released", "block 0", 1)),
        # An arrow on the tracks in question comes before longer ones.
        (LONG, False, Place(0, 400, ((1, 1), (0, 1))), ("wait", "block 1", 1)),
        # Not a slice with a twin.
        (LONG, True, Place(0, 400, ((1, 0),)), ("wait", "block 1", 1)),
    ],
)
def test_the_slice_with_an_arrow_is_selected(
    messages: tuple[tuple[int, int, int], ...],
    has_twin: bool,
    place: Place,
    expected: tuple[str, str, int],
    tmp_path: Path,
    processor: Processor,
) -> None:
    build = TraceBuilder(REGIONS, num_ranks=2)
    for block, times in enumerate(messages):
        message(build, block + 1, *times, block=block)
    if has_twin:
        build.span(0, "copy", 20, 280, block=9)
    summary = exported(build, tmp_path)
    link = link_to(build.trace(), place, summary)
    assert selected(link, summary, processor) == [expected]
    assert link.tracks == tuple(PinnedTrack(*track) for track in place.tracks)
    assert link.expanded == tuple(f"^Rank 0*{rank}\\b" for rank, _ in place.tracks)


def test_without_arrows_the_longest_span_is_selected(tmp_path: Path, processor: Processor) -> None:
    build = TraceBuilder('REGION(R_COPY, "copy", compute)', num_ranks=2)
    for rank, block, length in ((0, 0, 50), (1, 3, 90), (1, 4, 70)):
        build.span(rank, "copy", rank * 10 + block, length, block=block)
    summary = exported(build, tmp_path)
    link = link_to(build.trace(), Place(0, 1000, ((1, 4),)), summary)
    assert selected(link, summary, processor) == [("copy", "block 4", 0)]


def test_without_findings_it_opens_on_the_busiest_call(tmp_path: Path) -> None:
    build = TraceBuilder('REGION(R_COPY, "copy", compute)', num_ranks=2)
    for launch, start, length in ((1, 0, 50), (2, 10_000, 500), (3, 20_000, 60)):
        build.launch(launch, "kernel", num_blocks=2)
        for rank in range(2):
            for block in range(2):
                build.span(
                    rank, "copy", start, length + 10 * block + rank, launch=launch, block=block
                )
    place = busiest_place(build.trace())
    assert place == Place(10_000 - 26, 10_511 + 26, ((1, 1), (1, 0)))
    assert opening_place(build.trace(), ()) == place
    link = link_to(build.trace(), place, exported(build, tmp_path))
    # The span in the middle of the window, and half of it.
    assert (link.from_ns, link.to_ns) == (10_743, 11_766)
    assert link.query().startswith("&visStart=10743&visEnd=11766&ts=11000&dur=511")


def test_a_trace_without_events_opens_as_it_is(tmp_path: Path) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    found = analysis.find(Summary.of(build.trace()))
    assert write_to_view(build.trace(), tmp_path / "run.pftrace", found).tracks == ()


def test_nothing_is_selected_among_merged_slices(tmp_path: Path) -> None:
    build = TraceBuilder('REGION(R_COPY, "copy", compute)', num_ranks=1)
    for i in range(40):
        build.span(0, "copy", 10 * i, 5 + i % 3)
    summary = write(build.trace(), tmp_path / "run.pftrace", max_slices=4)
    assert summary.num_merged > 0
    assert link_to(build.trace(), Place(0, 1000, ((0, 0),)), summary).selected is None
