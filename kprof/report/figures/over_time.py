"""Figures whose x axis is time: lanes per rank, blocks up close, the critical path, launches."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kprof.analysis.wording import duration
from kprof.on_use import pd
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


@dataclass(frozen=True)
class Lanes:
    """What the tracks of every rank do over a call: `activity` and `presence` are the tables of
    kprof.analysis.timeline."""

    over: Focus
    activity: pd.DataFrame
    presence: pd.DataFrame

    @property
    def ranks(self) -> list[int]:
        """The ranks with spans in the call."""
        return sorted(self.activity["rank"].unique().tolist())

    @property
    def legend(self) -> list[tuple[str, str]]:
        """The categories that occur, and the two grounds."""
        known = set(self.activity["category"].unique())
        kinds = [kind for kind in CATEGORY_COLORS if kind in known]
        return [(kind, kind) for kind in kinds] + [("idle", "imbalance"), ("none", "in no region")]

    def draw(self, drawing: Drawing, axis: Axis, tops: dict[int, float], high: float) -> None:
        """The share of each rank's tracks per category, at these heights, from `axis.left` on."""
        shares = self.activity.pivot_table(
            index=["rank", "category"],
            columns="bin",
            values="share",
            aggfunc="sum",
            fill_value=0.0,
        )
        present = self.presence.pivot_table(index="rank", columns="bin", values="share")
        present = present.reindex(index=list(tops), columns=shares.columns, fill_value=0.0)
        left, right = axis.left, axis(self.over.end_ns)
        for rank, top in tops.items():
            bottom = top + high
            drawing.rect(left, top, right - left, high, "idle")
            of_rank = [kind for kind in CATEGORY_COLORS if (rank, kind) in shares.index]
            stacked = shares.loc[[(rank, kind) for kind in of_rank]].to_numpy().cumsum(axis=0)
            # Spans may overlap: a track is in no region only where it is there beyond all of them.
            gaps = present.loc[rank].to_numpy()
            if (gaps > stacked[-1] + _LEAST_GAP).any():
                drawing.path(_steps([float(gap) for gap in gaps], left, right, top, bottom), "none")
            # From the back to the front, so that each outline needs its upper edge only.
            for kind, total in reversed(list(zip(of_rank, stacked.tolist(), strict=True))):
                drawing.path(_steps(total, left, right, top, bottom), kind)


def timeline(report: Report) -> Figure | None:
    """Per rank a lane: which share of its blocks is in which category, over time.

    None for more ranks than MAX_LANES: see the ribbon.
    """
    over = report.focus
    lanes = Lanes(over, report.activity, report.presence)
    ranks = lanes.ranks
    if not 0 < len(ranks) <= MAX_LANES:
        return None
    height = min(40.0, max(13.0, _LANES_HEIGHT / len(ranks)))
    names = [f"rank {rank}" for rank in ranks]
    drawing, axis, left = _over(over, names, height)
    axis.right = drawing.width - 40
    drawing = Drawing(drawing.width, drawing.height)
    axis.draw(drawing, _LEGEND_HEIGHT, drawing.height - 36, f"the start of {over.what}")
    drawing.legend(left, 4, lanes.legend)
    tops = {rank: _LEGEND_HEIGHT + i * height for i, rank in enumerate(ranks)}
    lanes.draw(drawing, axis, tops, height - ROW_GAP)
    for i, top in enumerate(tops.values()):
        drawing.text(left - 8, top + (height - ROW_GAP) / 2 + 4, names[i], "end")
        if i == 0 or height >= 30:
            drawing.text(axis.right + 4, top + 8, "100 %", kind="fine")
            drawing.text(axis.right + 4, top + height - ROW_GAP, "0", kind="fine")
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


def draw_span(
    drawing: Drawing,
    axis: TimeAxis,
    row: dict[Any, Any],
    y: float,
    height: float,
    *,
    is_guilty: bool = False,
) -> None:
    """A span of a block, in the colour of its category; with an outline where it is part of a
    finding."""
    x = axis(row["start_ns"])
    kind = f"{row['category']} guilty" if is_guilty else row["category"]
    drawing.rect(x, y, axis(row["end_ns"]) - x, height, kind, described(row))


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
