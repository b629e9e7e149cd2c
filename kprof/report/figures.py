"""The figures of the HTML report, as Plotly figures in plain data: {id, data, layout}.

Colours of text, grids and heatmaps are left to the page, which follows the reader's light or dark scheme. Every
name from the capture passes through `label`: Plotly reads a little HTML in texts, and names are data.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Final

from kprof.analysis.wording import duration

if TYPE_CHECKING:
    import pandas as pd

    from kprof.report.model import Report

Figure = dict[str, Any]

# One colour per category in all figures; told apart by people who see no red and green, on white and on black.
CATEGORY_COLORS: Final = {
    "compute": "#2f9e77",
    "send": "#3f7fd0",
    "recv": "#7fb7ec",
    "wait": "#e0662f",
    "sync": "#e3b23c",
    "other": "#9aa3ad",
}
_MAX_LANES: Final = 16
_BARS_PER_OCTAVE: Final = 4


def label(name: object) -> str:
    """A name from the capture, safe in a Plotly text."""
    return html.escape(str(name), quote=True)


def all_figures(report: Report) -> list[Figure]:
    """Every figure that this report has data for, in the order of the page."""
    figures = [
        _timeline(report),
        _critical_path(report),
        _gantt(report),
        _blame(report),
        _peers(report),
        _block_heatmap(report, "work_ns", "work"),
        _block_heatmap(report, "wait_ns", "wait"),
        _ranks(report),
        _wait_distribution(report),
        _launches(report),
    ]
    return [figure for figure in figures if figure is not None]


def _figure(name: str, data: list[dict[str, Any]], height: int, **layout: Any) -> Figure:
    base = {
        "height": height,
        "margin": {"l": 70, "r": 20, "t": 10, "b": 45},
        "hoverlabel": {"align": "left"},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }
    return {"id": name, "data": data, "layout": base | layout}


def _unit(max_ns: float) -> tuple[float, str]:
    """The unit in which numbers up to `max_ns` read well."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if max_ns >= 2 * size:
            return size, unit
    return 1.0, "ns"


def _rounded(values: Any) -> list[Any]:
    """Four significant digits: the page holds no more than eyes can see."""
    return [float(f"{value:.4g}") for value in values]


def _timeline(report: Report) -> Figure | None:
    """Per rank a lane: which share of its blocks is in which category, over time."""
    activity, over = report.activity, report.focus
    if activity.empty:
        return None
    ranks = sorted(activity["rank"].unique().tolist())
    if len(ranks) > _MAX_LANES:
        return _waiting_over_time(report, ranks)
    size, unit = _unit(over.end_ns - over.start_ns)
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
    return _figure("timeline", data, height, hovermode="x", **layout)


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
        "x": _rounded((rows["from_ns"] - origin_ns) / size),
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
    size, unit = _unit(over.end_ns - over.start_ns)
    waiting = report.activity[report.activity["category"].isin(["wait", "sync"])]
    grid = waiting.pivot_table(index="rank", columns="bin", values="share", aggfunc="sum")
    bins = report.activity.drop_duplicates("bin").sort_values("bin")
    grid = grid.reindex(index=ranks, columns=bins["bin"].tolist()).fillna(0.0)
    data = {
        "type": "heatmap",
        "x": _rounded((bins["from_ns"] - over.start_ns) / size),
        "y": [f"rank {rank}" for rank in ranks],
        "z": [[round(value, 3) for value in row] for row in grid.to_numpy().tolist()],
        "zmin": 0,
        "zmax": 1,
        "colorbar": {"title": {"text": "blocks waiting"}, "tickformat": ".0%"},
        "hovertemplate": "%{y}, %{x} " + unit + ": %{z:.0%} of blocks wait<extra></extra>",
    }
    axis = {"title": {"text": f"time since the start of {over.what}, {unit}"}}
    height = 120 + max(160, min(900, 14 * len(ranks)))
    return _figure("timeline", [data], height, xaxis=axis, yaxis={"autorange": "reversed"})


def _gantt(report: Report) -> Figure | None:
    """The longest spans of a few blocks of two ranks."""
    spans, over = report.spans, report.focus
    if spans.empty:
        return None
    size, unit = _unit(over.end_ns - over.start_ns)
    lanes = spans[["rank", "block"]].drop_duplicates().sort_values(["rank", "block"])
    names = [f"rank {rank} block {block}" for rank, block in lanes.to_numpy().tolist()]
    data = []
    for category, color in CATEGORY_COLORS.items():
        rows = spans[spans["category"] == category]
        if not rows.empty:
            data.append(_bars(rows, over.start_ns, size, category, color))
    return _figure(
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


def _critical_path(report: Report) -> Figure | None:
    """A lane per rank; the path goes from left to right and changes lanes where one rank waited for another."""
    path, over = report.critical_path, report.focus
    if path is None or path.empty:
        return None
    size, unit = _unit(over.end_ns - over.start_ns)
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
    return _figure(
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
        "base": _rounded6((row["start_ns"] - origin_ns) / size for row in rows),
        "x": _rounded(row["duration_ns"] / size for row in rows),
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
        "base": _rounded6((rows["start_ns"] - origin_ns) / size),
        "x": _rounded((rows["end_ns"] - rows["start_ns"]) / size),
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


def _rounded6(values: Any) -> list[Any]:
    """Positions on a long axis need more digits than lengths."""
    return [float(f"{value:.7g}") for value in values]


def _blame(report: Report) -> Figure | None:
    """Who waits (rows) for whom (columns)."""
    matrix = report.blame_matrix
    values = matrix.to_numpy()
    if values.size == 0 or values.sum() == 0:
        return None
    size, unit = _unit(float(values.max()))
    side = max(300, min(760, 120 + 34 * len(matrix.columns)))
    few = len(matrix.columns) <= 16
    data = {
        "type": "heatmap",
        "x": [f"{peer}" for peer in matrix.columns],
        "y": [f"{rank}" for rank in matrix.index],
        "z": [_rounded(row / size) for row in values],
        "texttemplate": "%{z:.3~g}" if few else "",
        "colorbar": {"title": {"text": unit}},
        "hovertemplate": "rank %{y} waited %{z} " + unit + " for rank %{x}<extra></extra>",
        "xgap": 1,
        "ygap": 1,
    }
    return _figure(
        "blame",
        [data],
        side,
        xaxis={"title": {"text": "rank waited for"}, "type": "category"},
        yaxis={"title": {"text": "waiting rank"}, "type": "category", "autorange": "reversed"},
    )


def _peers(report: Report) -> Figure | None:
    """Per region, how long all others waited for each rank."""
    blame = report.blame
    foreign = blame[blame["rank"] != blame["peer"]]
    if foreign.empty:
        return None
    totals = foreign.groupby(["region", "peer"])["wait_ns"].sum()
    size, unit = _unit(float(totals.groupby("peer").sum().max()))
    data = [
        {
            "type": "bar",
            "x": [str(peer) for peer in rows.index.get_level_values("peer")],
            "y": _rounded(rows / size),
            "name": label(region),
            "hovertemplate": "%{y} " + unit + " for rank %{x}<extra>" + label(region) + "</extra>",
        }
        for region, rows in totals.groupby("region")
    ]
    order = [str(peer) for peer in report.blame_matrix.columns]
    return _figure(
        "peers",
        data,
        max(300, min(760, 120 + 34 * len(order))),
        barmode="stack",
        showlegend=True,
        xaxis={
            "title": {"text": "rank waited for"},
            "type": "category",
            "categoryorder": "array",
            "categoryarray": order,
        },
        yaxis={"title": {"text": f"wait of all other ranks, {unit}"}},
    )


def _block_heatmap(report: Report, column: str, what: str) -> Figure | None:
    """Ranks by blocks."""
    table = report.imbalance_by_block
    if table.empty or table[column].max() == 0:
        return None
    grid = table.pivot_table(index="rank", columns="block", values=column, aggfunc="sum")
    size, unit = _unit(float(table[column].max()))
    values = (grid / size).to_numpy()
    data = {
        "type": "heatmap",
        "x": grid.columns.tolist(),
        "y": [f"rank {rank}" for rank in grid.index],
        "z": [
            [None if value != value else float(f"{value:.3g}") for value in row]
            for row in values.tolist()
        ],
        "zmin": 0,
        "zmax": float(f"{float(table[column].max()) / size:.4g}"),
        "colorbar": {"title": {"text": unit}},
        "hovertemplate": "%{y} block %{x}: %{z} " + unit + " of " + what + "<extra></extra>",
    }
    return _figure(
        f"blocks-{what}",
        [data],
        110 + max(110, min(700, 26 * len(grid))),
        xaxis={"title": {"text": "block"}, "showgrid": False},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
    )


def _ranks(report: Report) -> Figure | None:
    """Work and wait per rank, per block of it."""
    table = report.imbalance_by_rank
    if table.empty:
        return None
    work = table["work_ns"] / table["tracks"]
    wait = table["wait_ns"] / table["tracks"]
    size, unit = _unit(float((work + wait).max()))
    data = [
        {
            "type": "bar",
            "x": [str(rank) for rank in table["rank"]],
            "y": _rounded(values / size),
            "name": name,
            "marker": {"color": CATEGORY_COLORS[color]},
            "hovertemplate": "rank %{x}: %{y} " + unit + " " + name + "<extra></extra>",
        }
        for name, values, color in (("work", work, "compute"), ("wait", wait, "wait"))
    ]
    return _figure(
        "ranks",
        data,
        320,
        barmode="stack",
        xaxis={"title": {"text": "rank"}, "type": "category"},
        yaxis={"title": {"text": f"mean per block, {unit}"}},
    )


def _wait_distribution(report: Report) -> Figure | None:
    """How long single waits last, per region: bars over log10(ns), four an octave's worth of histogram
    buckets."""
    table = report.histogram
    table = table[table["category"].isin(["wait", "sync"])]
    if table.empty:
        return None
    import numpy as np

    width = np.log10(2) / _BARS_PER_OCTAVE
    position = np.floor(np.log10(table["from_ns"]) / width + 1e-6) * width
    counts = table.assign(position=position).groupby(["region", "position"])["events"].sum()
    data = []
    for region, rows in counts.groupby("region"):
        positions = rows.index.get_level_values("position")
        data.append(
            {
                "type": "bar",
                "x": _rounded(positions + width / 2),
                "y": rows.tolist(),
                "width": float(width),
                "opacity": 0.75,
                "name": label(region),
                "text": [duration(10**value) for value in positions],
                "textposition": "none",
                "hovertemplate": "%{y} waits of about %{text}<extra>" + label(region) + "</extra>",
            }
        )
    decades = range(int(position.min()), int(position.max()) + 2)
    return _figure(
        "wait-distribution",
        data,
        320,
        barmode="overlay",
        showlegend=True,
        xaxis={
            "title": {"text": "duration of one wait"},
            "tickvals": list(decades),
            "ticktext": [_decade(power) for power in decades],
        },
        yaxis={"title": {"text": "waits"}, "type": "log", "dtick": 1},
    )


def _decade(power: int) -> str:
    """10 ns, 1 us, 100 ms"""
    unit = ("ns", "us", "ms", "s")[min(power // 3, 3)]
    return f"{10 ** (power - 3 * min(power // 3, 3))} {unit}"


def _launches(report: Report) -> Figure | None:
    """Duration and start skew of every launch."""
    skew = report.launch_skew
    if skew is None or len(skew) < 2:
        return None
    size, unit = _unit(float(skew["duration_ns"].max()))
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": list(range(len(skew))),
            "y": _rounded(skew[column] / size),
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
    return _figure(
        "launches",
        data,
        320,
        xaxis={"title": {"text": "launch"}, "dtick": max(1, len(skew) // 10)},
        yaxis={"title": {"text": unit}, "rangemode": "tozero"},
    )
