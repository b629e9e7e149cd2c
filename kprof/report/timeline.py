"""Figures for notebooks: what `trace.timeline()` and `trace.ribbon()` draw."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kprof.analysis import ribbon as ribbons
from kprof.analysis.summary import Summary
from kprof.analysis.timeline import Focus, focus, longest_spans
from kprof.errors import SelectionError
from kprof.report.figures import Figure
from kprof.report.figures.over_time import draw_span
from kprof.report.figures.ribbon import draw
from kprof.report.figures.up_close import ROW_HEIGHT, rows_of_blocks
from kprof.report.pictures import standalone

if TYPE_CHECKING:
    from kprof.trace import Trace


@dataclass(frozen=True)
class Picture:
    """A drawing, which notebooks show; its `svg` is a file of its own."""

    svg: str

    @staticmethod
    def of(figure: Figure) -> Picture:
        """A figure of a report, outside of its page."""
        return Picture(standalone(figure))

    def _repr_svg_(self) -> str:
        return self.svg


def block_timeline(
    trace: Trace, rank: int | Iterable[int] | None = None, launch: int | None = None
) -> Picture:
    """Draw the spans of some ranks' blocks in one launch, or in the call of median length.

    A row per block.
    """
    if rank is not None:
        trace = trace.select(ranks=rank)
    summary, over = _shown(trace, launch)
    spans = longest_spans(summary, over, [info.rank for info in trace.ranks])
    if spans.empty:
        raise _nothing("block")
    drawing, axis, top_of = rows_of_blocks(spans, over)
    # Spans that contain others come first, below them.
    in_order = spans.sort_values(["start_ns", "end_ns"], ascending=[True, False])
    for span in in_order.to_dict("records"):
        draw_span(drawing, axis, span, top_of[span["rank"], span["block"]], ROW_HEIGHT)
    return Picture.of(drawing.figure("timeline", f"Spans of single blocks over {over.what}"))


def wait_ribbon(trace: Trace, launch: int | None = None, blocks_of: int | None = None) -> Picture:
    """Draw for whom every rank waits, or every block of the rank `blocks_of`, in one launch or the
    call of median length."""
    if blocks_of is not None:
        trace.select(ranks=blocks_of)  # refuses a rank that was not recorded
    summary, over = _shown(trace, launch)
    drawn = ribbons.ribbon(summary, over, blocks_of=blocks_of)
    if not drawn.rows:
        raise _nothing("rank")
    return Picture.of(draw(drawn))


def _nothing(what: str) -> SelectionError:
    return SelectionError(f"no {what} of this selection has events; trace.launches() lists all")


def _shown(trace: Trace, launch: int | None) -> tuple[Summary, Focus]:
    """What to draw: a launch, or the call of median length."""
    if launch is None:
        summary = Summary.of(trace)
        return summary, focus(summary)
    trace = trace.select(launches=launch)
    first_ns, last_ns = trace.window_ns()
    if first_ns == last_ns:
        raise SelectionError(f"launch {launch} has no events here; trace.launches() lists all")
    return Summary.of(trace), Focus(first_ns, last_ns, f"launch {launch}")
