"""Figures whose x axis is time: lanes per rank, blocks up close, the critical path, launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kprof.analysis.wording import duration
from kprof.report.figures.base import (
    CATEGORY_COLORS,
    Figure,
    figure,
    label,
    positions,
    rounded,
    unit_of,
)

if TYPE_CHECKING:
    import pandas as pd

    from kprof.report.model import Report

_MAX_LANES: Final = 16


def timeline(report: Report) -> Figure | None:
    """Per rank a lane: which share of its blocks is in which category, over time."""
    activity, over = report.activity, report.focus
    if activity.empty:
        return None
    ranks = sorted(activity["rank"].unique().tolist())
    if len(ranks) > _MAX_LANES:
        return _waiting_over_time(report, ranks)
    size, unit = unit_of(over.end_ns - over.start_ns)
    gap = 0.15 / len(ranks)
    lane = 1.0 / len(ranks)
    data, layout = [], {}
    for i, rank in enumerate(ranks):
        axis = "y" if i == 0 else f"y{i + 1}"
        layout["yaxis" if i == 0 else f"yaxis{i + 1}"] = {
            "domain": [1 - (i + 1) * lane + gap, 1 - i * lane],
            "range": [0, 1],
            "fixedrange": True,
            "showticklabels": False,
            "showgrid": False,
            "zeroline": False,
            "title": {"text": f"rank {rank}", "standoff": 4},
        }
        for category, color in CATEGORY_COLORS.items():
            rows = activity[(activity["rank"] == rank) & (activity["category"] == category)]
            if not rows.empty:
                data.append(_area(rows, over.start_ns, size, category, color, axis, i == 0))
    seen: set[str] = set()
    for trace in data:
        trace["showlegend"] = trace["name"] not in seen
        seen.add(trace["name"])
    layout["xaxis"] = {
        "title": {"text": f"time since the start of {over.what}, {unit}"},
        "anchor": "free",
        "position": 0,
    }
    height = 110 + max(44, min(70, 560 // len(ranks))) * len(ranks)
    return figure("timeline", data, height, hovermode="x", **layout)


def _area(
    rows: pd.DataFrame,
    origin_ns: int,
    size: float,
    category: str,
    color: str,
    axis: str,
    first: bool,
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": rounded((rows["from_ns"] - origin_ns) / size),
        "y": [round(value, 3) for value in rows["share"].tolist()],
        "line": {"width": 0, "shape": "hv"},
        "fillcolor": color,
        "fill": "tonexty",
        "stackgroup": axis,
        "yaxis": axis,
        "xaxis": "x",
        "name": category,
        "legendgroup": category,
        "showlegend": first,
        "hovertemplate": "%{y:.0%} " + category + "<extra></extra>",
    }


def _waiting_over_time(report: Report, ranks: list[int]) -> Figure:
    """For many ranks: the share of blocks that wait, as a heatmap."""
    over = report.focus
    size, unit = unit_of(over.end_ns - over.start_ns)
    waiting = report.activity[report.activity["category"].isin(["wait", "sync"])]
    grid = waiting.pivot_table(index="rank", columns="bin", values="share", aggfunc="sum")
    bins = report.activity.drop_duplicates("bin").sort_values("bin")
    grid = grid.reindex(index=ranks, columns=bins["bin"].tolist()).fillna(0.0)
    data = {
        "type": "heatmap",
        "x": rounded((bins["from_ns"] - over.start_ns) / size),
        "y": [f"rank {rank}" for rank in ranks],
        "z": [[round(value, 3) for value in row] for row in grid.to_numpy().tolist()],
        "zmin": 0,
        "zmax": 1,
        "colorbar": {"title": {"text": "blocks waiting"}, "tickformat": ".0%"},
        "hovertemplate": "%{y}, %{x} " + unit + ": %{z:.0%} of blocks wait<extra></extra>",
    }
    axis = {"title": {"text": f"time since the start of {over.what}, {unit}"}}
    height = 120 + max(160, min(900, 14 * len(ranks)))
    return figure("timeline", [data], height, xaxis=axis, yaxis={"autorange": "reversed"})


def gantt(report: Report) -> Figure | None:
    """The longest spans of a few blocks of two ranks."""
    spans, over = report.spans, report.focus
    if spans.empty:
        return None
    size, unit = unit_of(over.end_ns - over.start_ns)
    lanes = spans[["rank", "block"]].drop_duplicates().sort_values(["rank", "block"])
    names = [f"rank {rank} block {block}" for rank, block in lanes.to_numpy().tolist()]
    data = []
    for category, color in CATEGORY_COLORS.items():
        rows = spans[spans["category"] == category]
        if not rows.empty:
            data.append(_bars(rows, over.start_ns, size, category, color))
    return figure(
        "gantt",
        data,
        90 + 19 * len(names),
        barmode="overlay",
        bargap=0.15,
        margin={"l": 125, "r": 20, "t": 10, "b": 45},
        xaxis={"title": {"text": f"time since the start of {over.what}, {unit}"}},
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": names,
            "autorange": "reversed",
            "dtick": 1,
            "range": [len(names) - 0.5, -0.5],
        },
    )


_PATH_COLORS: Final = {
    "transfer": "#b58ce0",
    "release": "#e3b23c",
    "gap": "#9aa3ad",
    "launch": "#6b7683",
}


_PATH_NAMES: Final = {
    "transfer": "data on its way",
    "release": "barrier opens",
    "gap": "between regions",
    "launch": "between launches",
}


def critical_path(report: Report) -> Figure | None:
    """A lane per rank; the path goes from left to right and changes lanes where one rank waited for another."""
    path, over = report.critical_path, report.focus
    if path is None or path.empty:
        return None
    size, unit = unit_of(over.end_ns - over.start_ns)
    categories = dict(zip(report.regions["region"], report.regions["category"], strict=True))
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in path.to_dict("records"):
        category = categories.get(row["region"], "other")
        is_span = row["kind"] == "span"
        name = category if is_span else _PATH_NAMES[row["kind"]]
        color = CATEGORY_COLORS[category] if is_span else _PATH_COLORS[row["kind"]]
        groups.setdefault((name, color), []).append({str(key): value for key, value in row.items()})
    data = [
        _path_bars(rows, over.start_ns, size, name, color) for (name, color), rows in groups.items()
    ]
    ranks = sorted(path["rank"].unique().tolist())
    return figure(
        "critical-path",
        data,
        110 + 26 * len(ranks),
        barmode="overlay",
        bargap=0.25,
        showlegend=True,
        xaxis={"title": {"text": f"time since the start of {over.what}, {unit}"}},
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [f"rank {rank}" for rank in ranks],
            "range": [len(ranks) - 0.5, -0.5],
        },
    )


def _path_bars(
    rows: list[dict[str, Any]], origin_ns: int, size: float, name: str, color: str
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "base": positions((row["start_ns"] - origin_ns) / size for row in rows),
        "x": rounded(row["duration_ns"] / size for row in rows),
        "y": [f"rank {row['rank']}" for row in rows],
        "marker": {"color": color, "line": {"width": 0}},
        "name": name,
        "text": [
            f"{label(row['region'])} (block {row['block']}): {duration(row['duration_ns'])}, {name}"
            for row in rows
        ],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
    }


def _bars(
    rows: pd.DataFrame, origin_ns: int, size: float, category: str, color: str
) -> dict[str, Any]:
    texts = []
    for row in rows.to_dict("records"):
        peer = f", rank {row['peer']}" if row["peer"] >= 0 else ""
        texts.append(f"{label(row['region'])}{peer}: {duration(row['end_ns'] - row['start_ns'])}")
    return {
        "type": "bar",
        "orientation": "h",
        "base": positions((rows["start_ns"] - origin_ns) / size),
        "x": rounded((rows["end_ns"] - rows["start_ns"]) / size),
        "y": [
            f"rank {rank} block {block}"
            for rank, block in rows[["rank", "block"]].to_numpy().tolist()
        ],
        "marker": {"color": color, "line": {"width": 0}},
        "name": category,
        "text": texts,
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
    }


def launches(report: Report) -> Figure | None:
    """Duration and start skew of every launch."""
    skew = report.launch_skew
    if skew is None or len(skew) < 2:
        return None
    size, unit = unit_of(float(skew["duration_ns"].max()))
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": list(range(len(skew))),
            "y": rounded(skew[column] / size),
            "name": name,
            "text": [
                f"{label(row['kernel'])} call {row['ordinal']}" for row in skew.to_dict("records")
            ],
            "line": {"color": color},
            "hovertemplate": "%{text}: %{y} " + unit + " " + name + "<extra></extra>",
        }
        for column, name, color in (
            ("duration_ns", "duration", CATEGORY_COLORS["send"]),
            ("skew_ns", "start skew", CATEGORY_COLORS["wait"]),
        )
    ]
    return figure(
        "launches",
        data,
        320,
        xaxis={"title": {"text": "launch"}, "dtick": max(1, len(skew) // 10)},
        yaxis={"title": {"text": unit}, "rangemode": "tozero"},
    )
