"""Figures for notebooks: what `trace.timeline()` and `trace.ribbon()` draw."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from kprof.analysis.ribbon import NOBODY, ribbon
from kprof.analysis.summary import Summary
from kprof.analysis.timeline import Focus, focus, longest_spans
from kprof.errors import SelectionError, require
from kprof.on_use import np, pd
from kprof.report.figures.base import CATEGORY_COLORS, described, unit_of
from kprof.report.figures.ribbon import RIBBON_COLORS, color_of, hues, png

if TYPE_CHECKING:
    from plotly.graph_objects import Bar, Figure

    from kprof.analysis.ribbon import Ribbon
    from kprof.trace import Trace

_MOST_NAMES: Final = 40
_PIXELS_PER_ROW: Final = 18


def block_timeline(
    trace: Trace, rank: int | Iterable[int] | None = None, launch: int | None = None
) -> Figure:
    """Draw the spans of some ranks' blocks in one launch, or in the call of median length.

    A row per block.
    """
    require("plotly", "a figure")
    from plotly.graph_objects import Figure

    if rank is not None:
        trace = trace.select(ranks=rank)
    summary, over = _shown(trace, launch)
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


def wait_ribbon(trace: Trace, launch: int | None = None, blocks_of: int | None = None) -> Figure:
    """Draw for whom every rank waits, or every block of the rank `blocks_of`, in one launch or the
    call of median length."""
    require("plotly", "a figure")
    from plotly.graph_objects import Figure, Image, Scatter

    if blocks_of is not None:
        trace.select(ranks=blocks_of)  # refuses a rank that was not recorded
    summary, over = _shown(trace, launch)
    drawn = ribbon(summary, over, blocks_of=blocks_of)
    if not drawn.rows:
        raise SelectionError("no rank of this selection has events; trace.launches() lists all")
    size, unit = unit_of(over.end_ns - over.start_ns)
    what = "rank" if blocks_of is None else "block"
    names = [f"{what} {rank if blocks_of is None else block}" for rank, block in drawn.rows]
    cells = Image(
        # Colours as numbers would be ten times as large.
        source="data:image/png;base64," + base64.b64encode(png(color_of(drawn))).decode(),
        x0=drawn.bin_ns / size / 2,
        dx=drawn.bin_ns / size,
        hovertext=_in_words(drawn, names),
        hovertemplate="%{x:.4g} " + unit + ": %{text}<extra></extra>",
    )
    known = [(f"culprit-{hue}", f"waits for rank {rank}") for rank, hue in hues(drawn).items()]
    # An image has no legend of its own.
    keys = [
        Scatter(x=[None], y=[None], mode="markers", name=name, marker=_square(kind))
        for kind, name in [*known, ("own", "own work")]
    ]
    figure = Figure([cells, *keys])
    every = max(1, len(names) // _MOST_NAMES)
    figure.update_layout(
        height=max(260, min(900, 160 + _PIXELS_PER_ROW * len(names))),
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom"},
        margin={"t": 50, "b": 60},
        # The grey of own work needs white beside it.
        plot_bgcolor="#ffffff",
        xaxis={
            "title": f"time since the start of {over.what}, {unit}",
            "range": [0, (over.end_ns - over.start_ns) / size],
        },
        yaxis={
            "scaleanchor": False,
            "range": [len(names) - 0.5, -0.5],
            "tickvals": list(range(0, len(names), every)),
            "ticktext": names[::every],
        },
    )
    return figure


def _square(kind: str) -> dict[str, object]:
    return {"symbol": "square", "size": 11, "color": RIBBON_COLORS[kind][0]}


def _in_words(drawn: Ribbon, names: list[str]) -> list[list[str]]:
    """Of every cell whom most of its tracks wait for, and which share: rows x bins."""
    percents = np.rint(100 * drawn.shares[..., 0]).astype(int)
    return [
        [
            f"{name} " + _cell_in_words(*cell)
            for cell in zip(whom.tolist(), percent.tolist(), runs.tolist(), strict=True)
        ]
        for name, whom, percent, runs in zip(
            names, drawn.culprits[..., 0], percents, drawn.present > 0, strict=True
        )
    ]


def _cell_in_words(whom: int, percent: int, is_running: bool) -> str:
    if percent:
        return f"waits for {'no rank' if whom == NOBODY else f'rank {whom}'}: {percent} %"
    return "works" if is_running else "is not running"


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
