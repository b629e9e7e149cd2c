"""Figures by rank, block and peer, and the distribution of waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kprof.analysis.wording import duration
from kprof.report.figures.base import (
    CATEGORY_COLORS,
    Figure,
    few_rows,
    figure,
    label,
    rounded,
    short,
    unit_of,
    with_few_regions,
)

if TYPE_CHECKING:
    from kprof.report.model import Report

_BARS_PER_OCTAVE: Final = 4


def blame(report: Report) -> Figure | None:
    """Who waits (rows) for whom (columns)."""
    if report.blame_matrix.to_numpy().sum() == 0:
        return None
    matrix, waiting = few_rows(report.blame_matrix, "waiting rank")
    transposed, waited_for = few_rows(matrix.T, "rank waited for")
    matrix = transposed.T
    values = matrix.to_numpy()
    size, unit = unit_of(float(values.max()))
    side = max(300, min(760, 120 + 34 * len(matrix.columns)))
    few = len(matrix.columns) <= 16
    data = {
        "type": "heatmap",
        "x": [f"{peer}" for peer in matrix.columns],
        "y": [f"{rank}" for rank in matrix.index],
        "z": [rounded(row / size) for row in values],
        "texttemplate": "%{z:.3~g}" if few else "",
        "colorbar": {"title": {"text": unit}},
        "hovertemplate": "rank %{y} waited %{z} " + unit + " for rank %{x}<extra></extra>",
        "xgap": int(few),
        "ygap": int(few),
    }
    return figure(
        "blame",
        [data],
        side,
        xaxis={"title": {"text": waited_for}, "type": "category"},
        yaxis={"title": {"text": waiting}, "type": "category", "autorange": "reversed"},
    )


def peers(report: Report) -> Figure | None:
    """Per region, how long all others waited for each rank."""
    blame = report.tables["blame"]
    foreign = blame[blame["rank"] != blame["peer"]]
    if foreign.empty:
        return None
    foreign = with_few_regions(foreign, "wait_ns")
    totals = foreign.groupby(["region", "peer"])["wait_ns"].sum()
    size, unit = unit_of(float(totals.groupby("peer").sum().max()))
    data = [
        {
            "type": "bar",
            "x": [str(peer) for peer in rows.index.get_level_values("peer")],
            "y": rounded(rows / size),
            "name": short(region),
            "hovertemplate": "%{y} " + unit + " for rank %{x}<extra>" + label(region) + "</extra>",
        }
        for region, rows in totals.groupby("region")
    ]
    order = [str(peer) for peer in report.blame_matrix.columns]
    return figure(
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


def block_heatmap(report: Report, column: str, what: str) -> Figure | None:
    """Ranks by blocks."""
    table = report.tables["imbalance_by_block"]
    if table.empty or table[column].max() == 0:
        return None
    by_rank = table.pivot_table(index="rank", columns="block", values=column, aggfunc="sum")
    grid, title = few_rows(by_rank)
    size, unit = unit_of(float(table[column].max()))
    values = (grid / size).to_numpy()
    data = {
        "type": "heatmap",
        "x": grid.columns.tolist(),
        "y": [f"{rank}" for rank in grid.index],
        "z": [
            [None if value != value else float(f"{value:.3g}") for value in row]
            for row in values.tolist()
        ],
        "zmin": 0,
        "zmax": float(f"{float(table[column].max()) / size:.4g}"),
        "colorbar": {"title": {"text": unit}},
        "hovertemplate": "rank %{y} block %{x}: %{z} " + unit + " of " + what + "<extra></extra>",
    }
    return figure(
        f"blocks-{what}",
        [data],
        110 + max(110, min(700, 26 * len(grid))),
        xaxis={"title": {"text": "block"}, "showgrid": False},
        yaxis={
            "title": {"text": title},
            "type": "category",
            "autorange": "reversed",
            "showgrid": False,
        },
    )


def rank_bars(report: Report) -> Figure | None:
    """Work and wait per rank, per block of it."""
    table = report.tables["imbalance_by_rank"]
    if table.empty:
        return None
    work = table["work_ns"] / table["tracks"]
    wait = table["wait_ns"] / table["tracks"]
    size, unit = unit_of(float((work + wait).max()))
    data = [
        {
            "type": "bar",
            "x": [str(rank) for rank in table["rank"]],
            "y": rounded(values / size),
            "name": name,
            "marker": {"color": CATEGORY_COLORS[color]},
            "hovertemplate": "rank %{x}: %{y} " + unit + " " + name + "<extra></extra>",
        }
        for name, values, color in (("work", work, "compute"), ("wait", wait, "wait"))
    ]
    return figure(
        "ranks",
        data,
        320,
        barmode="stack",
        xaxis={"title": {"text": "rank"}, "type": "category"},
        yaxis={"title": {"text": f"mean per track, {unit}"}},
    )


def wait_distribution(report: Report) -> Figure | None:
    """How long single waits last, per region: bars over log10(ns), four an octave's worth of
    histogram buckets."""
    table = report.histogram
    table = table[table["category"].isin(["wait", "sync"])]
    if table.empty:
        return None
    import numpy as np

    table = with_few_regions(table, "events")
    width = np.log10(2) / _BARS_PER_OCTAVE
    position = np.floor(np.log10(table["from_ns"]) / width + 1e-6) * width
    counts = table.assign(position=position).groupby(["region", "position"])["events"].sum()
    data = []
    for region, rows in counts.groupby("region"):
        positions = rows.index.get_level_values("position")
        data.append(
            {
                "type": "bar",
                "x": rounded(positions + width / 2),
                "y": rows.tolist(),
                "width": float(width),
                "opacity": 0.75,
                "name": short(region),
                "text": [duration(10**value) for value in positions],
                "textposition": "none",
                "hovertemplate": "%{y} waits of about %{text}<extra>" + label(region) + "</extra>",
            }
        )
    ticks = _ticks(float(position.min()), float(position.max() + width))
    return figure(
        "wait-distribution",
        data,
        320,
        barmode="overlay",
        showlegend=True,
        xaxis={
            "title": {"text": "duration of one wait"},
            "tickvals": [float(f"{np.log10(tick):.4g}") for tick in ticks],
            "ticktext": [
                f"{tick / size:g} {unit}" for tick in ticks for size, unit in [unit_of(2 * tick)]
            ],
        },
        yaxis={"title": {"text": "waits"}, "type": "log", "dtick": 1},
    )


def _ticks(first: float, last: float) -> list[int]:
    """Round numbers of ns from 10^first to 10^last: powers of ten, and 2 and 5 if there are few."""
    steps = (1,) if last - first >= 2 else (1, 2, 5)
    powers = range(int(first), int(last) + 1)
    return [step * 10**power for power in powers for step in steps]
