"""Figures whose x axis is time: lanes per rank, blocks up close, the critical path, launches."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from kprof.analysis.wording import duration
from kprof.report.figures.base import (
    CATEGORY_COLORS,
    Figure,
    described,
    label,
    short,
    ticks,
    unit_of,
)
from kprof.report.figures.svg import (
    ROW_GAP,
    WIDTH,
    Axis,
    Drawing,
    TimeAxis,
    num,
    rows_with_time,
)

if TYPE_CHECKING:
    import pandas as pd

    from kprof.analysis.timeline import Focus
    from kprof.report.model import Report

MAX_LANES: Final = 16
_LANES_HEIGHT: Final = 150
_MAX_KERNELS: Final = 6
_LEGEND_HEIGHT: Final = 22
# A smaller share of the tracks is less than half a pixel.
_LEAST_GAP: Final = 0.01
# Of what a block does in no category: the page's own ground.
_NAMES: Final = {
    "transfer": "data on its way",
    "release": "a barrier opens",
    "gap": "between regions or blocks",
    "launch": "between launches",
}
_KINDS: Final = {"transfer": "transfer", "release": "sync", "gap": "none", "launch": "idle"}


def timeline(report: Report) -> Figure | None:
    """Per rank a lane: which share of its blocks is in which category, over time.

    None for more ranks than MAX_LANES: see the ribbon.
    """
    ranks = sorted(report.activity["rank"].unique().tolist())
    if not 0 < len(ranks) <= MAX_LANES:
        return None
    over, activity = report.focus, report.activity
    shares = activity.pivot_table(
        index=["rank", "category"], columns="bin", values="share", aggfunc="sum", fill_value=0.0
    )
    kinds = [kind for kind in CATEGORY_COLORS if kind in set(activity["category"])]
    height = min(40.0, max(13.0, _LANES_HEIGHT / len(ranks)))
    names = [f"rank {rank}" for rank in ranks]
    drawing, axis, left = _over(over, names, height)
    axis.right = drawing.width - 40
    drawing = Drawing(drawing.width, drawing.height)
    axis.draw(drawing, _LEGEND_HEIGHT, drawing.height - 36, f"the start of {over.what}")
    present = report.presence.pivot_table(index="rank", columns="bin", values="share")
    present = present.reindex(index=ranks, columns=shares.columns, fill_value=0.0)
    grounds = [("idle", "imbalance"), ("none", "in no region")]
    drawing.legend(left, 4, [(kind, kind) for kind in kinds] + grounds)
    for i, rank in enumerate(ranks):
        top = _LEGEND_HEIGHT + i * height
        bottom = top + height - ROW_GAP
        drawing.rect(left, top, axis.right - left, bottom - top, "idle")
        of_rank = [kind for kind in kinds if (rank, kind) in shares.index]
        stacked = shares.loc[[(rank, kind) for kind in of_rank]].to_numpy().cumsum(axis=0)
        # Spans may overlap: a track is in no region only where it is there beyond all of them.
        gaps = present.loc[rank].to_numpy()
        if (gaps > stacked[-1] + _LEAST_GAP).any():
            drawing.path(
                _steps([float(gap) for gap in gaps], left, axis.right, top, bottom), "none"
            )
        # From the back to the front, so that each outline needs its upper edge only.
        for kind, total in reversed(list(zip(of_rank, stacked.tolist(), strict=True))):
            drawing.path(_steps(total, left, axis.right, top, bottom), kind)
        drawing.text(left - 8, (top + bottom) / 2 + 4, names[i], "end")
        if i == 0 or height >= 30:
            drawing.text(axis.right + 4, top + 8, "100 %", kind="fine")
            drawing.text(axis.right + 4, bottom, "0", kind="fine")
    title = f"Share of each rank's tracks per category over {over.what}"
    return drawing.figure("timeline", title)


def _over(over: Focus, names: list[str], height: float) -> tuple[Drawing, TimeAxis, float]:
    """A drawing with a named row per track over the time that figures show, as in svg.py."""
    range_ns, since = (over.start_ns, over.end_ns), f"the start of {over.what}"
    return rows_with_time(names, height, range_ns, since, _LEGEND_HEIGHT)


def _steps(shares: list[float], left: float, right: float, top: float, bottom: float) -> str:
    """The outline of bars side by side, from 0 at the bottom to 1 at the top."""
    width = (right - left) / max(1, len(shares))
    parts, last = [f"M{num(left)} {num(bottom)}"], bottom
    for i, share in enumerate(shares):
        y = round(2 * (bottom - min(1.0, share) * (bottom - top))) / 2
        if y != last:
            parts.append(f"H{num(left + i * width)}V{num(y)}")
            last = y
    parts.append(f"H{num(right)}V{num(bottom)}Z")
    return "".join(parts)


def runs(steps: list[int]) -> list[tuple[int, int, int]]:
    """Neighbours of one value together: (first, after the last, value)."""
    borders = [i for i in range(1, len(steps)) if steps[i] != steps[i - 1]]
    edges = [0, *borders, len(steps)]
    return [(first, after, steps[first]) for first, after in itertools.pairwise(edges) if after]


def gantt(report: Report) -> Figure | None:
    """The longest spans of a few blocks of two ranks."""
    spans, over = report.spans, report.focus
    if spans.empty:
        return None
    lanes = spans[["rank", "block"]].drop_duplicates().sort_values(["rank", "block"])
    pairs = lanes.to_numpy().tolist()
    names = [f"rank {rank} block {block}" for rank, block in pairs]
    height = 17.0
    drawing, axis, left = _over(over, names, height)
    kinds = [kind for kind in CATEGORY_COLORS if (spans["category"] == kind).any()]
    drawing.legend(left, 4, [(kind, kind) for kind in kinds])
    row_of = {(rank, block): i for i, (rank, block) in enumerate(pairs)}
    for row in spans.to_dict("records"):
        y = _LEGEND_HEIGHT + row_of[row["rank"], row["block"]] * height
        draw_span(drawing, axis, row, y, height - ROW_GAP)
    return drawing.figure("gantt", f"Spans of single blocks over {over.what}")


def draw_span(
    drawing: Drawing, axis: TimeAxis, row: dict[Any, Any], y: float, height: float
) -> None:
    """A span of a block, in the colour of its category."""
    x = axis(row["start_ns"])
    drawing.rect(x, y, axis(row["end_ns"]) - x, height, row["category"], described(row))


def critical_path(report: Report) -> Figure | None:
    """A lane per rank.

    The path goes from left to right and changes lanes where one rank waited for another.
    """
    path, over = report.rows("critical_path"), report.focus
    if not path:
        return None
    category_of = {row["region"]: row["category"] for row in report.rows("regions")}
    ranks = sorted({row["rank"] for row in path})
    height = 24.0
    drawing, axis, left = _over(over, [f"rank {rank}" for rank in ranks], height)
    seen: dict[str, str] = {}
    for row in path:
        is_span = row["kind"] == "span"
        name = category_of.get(row["region"], "other") if is_span else _NAMES[row["kind"]]
        kind = name if is_span else _KINDS[row["kind"]]
        seen[kind] = name if kind not in CATEGORY_COLORS else kind
        x, y = axis(row["start_ns"]), _LEGEND_HEIGHT + ranks.index(row["rank"]) * height
        tip = f"{label(row['region'])} (block {row['block']}): {duration(row['duration_ns'])}"
        end = axis(row["start_ns"] + row["duration_ns"])
        drawing.rect(x, y, end - x, height - 4, kind, f"{tip}, {label(name)}")
    drawing.legend(left, 4, seen.items())
    return drawing.figure("critical-path", f"The critical path of {over.what}, by rank")


def launches(report: Report) -> Figure | None:
    """Duration and start skew of every call of the kernels that take most, a row per kernel."""
    skew = report.tables.get("launch_skew")
    if skew is None or skew["ordinal"].nunique() < 2:
        return None
    totals = skew.groupby("kernel")["duration_ns"].sum().sort_values(ascending=False, kind="stable")
    kernels = totals.index.tolist()[:_MAX_KERNELS]
    height, left = 84.0, 70.0
    drawing = Drawing(WIDTH, height * len(kernels) + 40)
    axis = Axis(0, float(skew["ordinal"].max()), left, WIDTH - 16)
    for i, kernel in enumerate(kernels):
        calls = skew[skew["kernel"] == kernel].sort_values("ordinal", kind="stable")
        _calls(drawing, axis, calls, short(kernel or "the kernel"), i * height, height)
    for tick in axis.ticks(whole=True):
        drawing.text(axis(tick), height * len(kernels) + 14, f"{tick:g}", "middle")
    drawing.text((left + WIDTH - 16) / 2, height * len(kernels) + 32, "call", "middle")
    return drawing.figure("launches", "How long each launch took, and how far apart ranks began")


def _calls(
    drawing: Drawing, axis: Axis, calls: pd.DataFrame, name: str, top: float, height: float
) -> None:
    """A line for the length of each launch and a dashed one for the skew of its starts."""
    largest = float(calls[["duration_ns", "skew_ns"]].max().max())
    size, unit = unit_of(largest)
    bottom = top + height - 10
    drawing.text(axis.left, top + 14, f"{name}, {unit}")
    rows = Axis(0.0, largest / size, bottom, top + 24)
    for tick in ticks(0.0, largest / size, 3):
        drawing.line(axis.left, rows(tick), axis.right, rows(tick))
        drawing.text(axis.left - 8, rows(tick) + 4, f"{tick:g}", "end")
    for column, kind in (("duration_ns", "curve"), ("skew_ns", "curve dashed")):
        points = [
            f"{num(axis(ordinal))} {num(rows(value / size))}"
            for ordinal, value in zip(calls["ordinal"], calls[column], strict=True)
        ]
        drawing.path("M" + "L".join(points), kind)
