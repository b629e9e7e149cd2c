"""A timeline of blocks for notebooks: what `trace.timeline()` draws."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from kprof.analysis.summary import Summary
from kprof.analysis.timeline import Focus, focus, longest_spans
from kprof.errors import SelectionError
from kprof.report.figures.base import CATEGORY_COLORS, described, unit_of

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Bar, Figure

    from kprof.trace import Trace

_PIXELS_PER_ROW: Final = 18


def block_timeline(
    trace: Trace, rank: int | Iterable[int] | None = None, launch: int | None = None
) -> Figure:
    """Draw the spans of some ranks' blocks in one launch, or in the call of median length.

    A row per block.
    """
    from plotly.graph_objects import Figure

    if rank is not None:
        trace = trace.select(ranks=rank)
    if launch is not None:
        trace = trace.select(launches=launch)
    summary = Summary.of(trace)
    over = focus(summary) if launch is None else _whole(trace, launch)
    spans = longest_spans(summary, over, [info.rank for info in trace.ranks])
    size, unit = unit_of(over.end_ns - over.start_ns)
    rows = [f"rank {row.rank} block {row.block}" for row in spans.itertuples()]
    spans = spans.assign(row=rows)
    figure = Figure(
        [
            _bars(spans[spans["category"] == category], over.start_ns, size, category)
            for category in CATEGORY_COLORS
            if (spans["category"] == category).any()
        ]
    )
    order = list(dict.fromkeys(rows))
    figure.update_layout(
        barmode="overlay",
        bargap=0.15,
        height=160 + _PIXELS_PER_ROW * len(order),
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom"},
        xaxis_title=f"time since the start of {over.what}, {unit}",
        yaxis={"type": "category", "categoryorder": "array", "categoryarray": order[::-1]},
    )
    return figure


def _whole(trace: Trace, launch: int) -> Focus:
    first_ns, last_ns = trace.window_ns()
    if first_ns == last_ns:
        raise SelectionError(f"launch {launch} has no events here; trace.launches() lists all")
    return Focus(first_ns, last_ns, f"launch {launch}")


def _bars(spans: pd.DataFrame, origin_ns: int, size: float, category: str) -> Bar:
    from plotly.graph_objects import Bar

    return Bar(
        orientation="h",
        name=category,
        marker={"color": CATEGORY_COLORS[category], "line": {"width": 0}},
        base=((spans["start_ns"] - origin_ns) / size).tolist(),
        x=((spans["end_ns"] - spans["start_ns"]) / size).tolist(),
        y=spans["row"].tolist(),
        hovertext=[described(span) for span in spans.to_dict("records")],
        hoverinfo="text",
    )
