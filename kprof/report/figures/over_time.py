"""Figures whose x axis is time: lanes per rank, blocks up close, the critical path, launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kprof.analysis.wording import duration
from kprof.report.figures.base import (
    CATEGORY_COLORS,
    Figure,
    few_rows,
    figure,
    label,
    positions,
    rounded,
    short,
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
    grid, title = few_rows(grid)
    data = {
        "type": "heatmap",
        "x": rounded((bins["from_ns"] - over.start_ns) / size),
        "y": [f"{rank}" for rank in grid.index],
        "z": [[round(value, 3) for value in row] for row in grid.to_numpy().tolist()],
        "zmin": 0,
        "zmax": 1,
        "colorbar": {"title": {"text": "blocks waiting"}, "tickformat": ".0%"},
        "hovertemplate": "rank %{y}, %{x} " + unit + ": %{z:.0%} of blocks wait<extra></extra>",
    }
    axis = {"title": {"text": f"time since the start of {over.what}, {unit}"}}
    rows = {"title": {"text": title}, "type": "category", "autorange": "reversed"}
    height = 120 + max(160, min(900, 14 * len(grid)))
    return figure("timeline", [data], height, xaxis=axis, yaxis=rows)


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
    """A lane per rank.

    The path goes from left to right and changes lanes where one rank waited for another.
    """
    path, over = report.tables.get("critical_path"), report.focus
    if path is None or path.empty:
        return None
    size, unit = unit_of(over.end_ns - over.start_ns)
    categories = dict(
        zip(report.tables["regions"]["region"], report.tables["regions"]["category"], strict=True)
    )
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
        130 + 26 * len(ranks),
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
    """Duration and start skew of every call of the kernels that take most."""
    skew = report.tables.get("launch_skew")
    if skew is None or skew["ordinal"].nunique() < 2:
        return None
    size, unit = unit_of(float(skew["duration_ns"].max()))
    totals = skew.groupby("kernel")["duration_ns"].sum().sort_values(ascending=False)
    data = []
    for kernel, color in zip(totals.index, CATEGORY_COLORS.values(), strict=False):
        calls = skew[skew["kernel"] == kernel].sort_values("ordinal")
        name = short(kernel or "the kernel")
        data.append(_calls(calls, "duration_ns", size, unit, name, color))
        data.append(_calls(calls, "skew_ns", size, unit, f"{name}: start skew", color))
    return figure(
        "launches",
        data,
        320 + 10 * len(data),
        xaxis={"title": {"text": "call"}, "dtick": max(1, skew["ordinal"].nunique() // 10)},
        yaxis={"title": {"text": unit}, "rangemode": "tozero"},
    )


def _calls(
    calls: pd.DataFrame, column: str, size: float, unit: str, name: str, color: str
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": calls["ordinal"].tolist(),
        "y": rounded(calls[column] / size),
        "name": name,
        "line": {"color": color, "dash": "dot" if column == "skew_ns" else "solid"},
        "hovertemplate": "call %{x}: %{y} " + unit + "<extra>" + name + "</extra>",
    }
