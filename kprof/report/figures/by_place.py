"""Figures by rank, block and peer, and the distribution of waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kprof.analysis.wording import duration, percent
from kprof.on_use import np, pd
from kprof.report.figures.base import (
    NUM_TINTS,
    Figure,
    few_rows,
    label,
    short,
    ticks,
    tint,
    unit_of,
    with_few_regions,
)
from kprof.report.figures.over_time import runs
from kprof.report.figures.svg import HALF, LETTER, WIDTH, Axis, Drawing

if TYPE_CHECKING:
    from kprof.report.model import Report

_BARS_PER_OCTAVE: Final = 4
_BARS_HEIGHT: Final = 190.0
_FEW: Final = 16
_MOST_REGIONS: Final = 20
# More cells than that are drawn together with their likes.
_MAX_CELLS: Final = 1200


def blame(report: Report) -> Figure | None:
    """Who waits (rows) for whom (columns)."""
    if report.blame_matrix.to_numpy().sum() == 0:
        return None
    axes = "waiting rank", "rank waited for"
    return _heatmap(report.blame_matrix, axes, "blame", "wait", "waited for")


def block_heatmap(report: Report, column: str, what: str) -> Figure | None:
    """Ranks by blocks."""
    table = report.tables["imbalance_by_block"]
    if table.empty or table[column].max() == 0:
        return None
    by_rank = table.pivot_table(index="rank", columns="block", values=column, aggfunc="sum")
    return _heatmap(by_rank, ("rank", "block"), f"blocks-{what}", what, "block")


def _heatmap(
    whole: pd.DataFrame, axes: tuple[str, str], name: str, kind: str, column: str
) -> Figure:
    """Cells whose tint is their value; few of them have it written in, many are merged. `axes` are
    what rows and columns are."""
    few, of_rows = few_rows(whole, axes[0])
    transposed, of_columns = few_rows(few.T, axes[1])
    grid, title = transposed.T, f"{of_rows} (rows), {of_columns} (columns)"
    rows, columns = [str(r) for r in grid.index], [str(c) for c in grid.columns]
    left, top = 12 + LETTER * max(len(row) for row in rows), 60.0
    width = (HALF - left - 4) / len(columns)
    height = max(5.0, min(30.0, 330 / len(rows)))
    drawing = Drawing(HALF, top + height * len(rows) + 4)
    drawing.text(0, 12, label(title))
    largest = float(grid.max().max())
    size, unit = unit_of(largest)
    _scale(drawing, 20, largest, kind)
    every = max(1, -(-int(LETTER * (len(columns[-1]) + 1)) // int(max(1, width))))
    for j in range(0, len(columns), every):
        drawing.text(left + (j + 0.5) * width, top - 6, columns[j], "middle")
    step = 1 if height >= 12 else 4
    is_merged = grid.size > _MAX_CELLS
    for i, values in enumerate(grid.to_numpy(dtype=float).tolist()):
        y = top + i * height
        if i % step == 0:
            drawing.text(left - 6, y + height / 2 + 4, rows[i], "end")
        steps = [tint(value, largest) if value == value else 0 for value in values]
        cells = runs(steps) if is_merged else [(j, j + 1, s) for j, s in enumerate(steps)]
        for first, after, depth in cells:
            if not depth:
                continue
            most = max(values[first:after])
            where = (
                columns[first] if after - first == 1 else f"{columns[first]}-{columns[after - 1]}"
            )
            tip = f"rank {rows[i]}, {column} {where}: {duration(most)}"
            x = left + first * width
            gap = 1 if width > 4 else 0
            drawing.rect(x, y, (after - first) * width - gap, height - gap, f"{kind} t{depth}", tip)
            if len(columns) <= _FEW // 2 and height >= 16:
                text = f"{most / size:.3g} {unit}"
                ink = "cell deep" if depth > 4 else "cell"
                drawing.text(x + width / 2, y + height / 2 + 4, text, "middle", ink)
    return drawing.figure(name, title)


def _scale(drawing: Drawing, y: float, largest: float, kind: str) -> None:
    """Which amounts the tints stand for."""
    drawing.text(0, y + 10, "0 ns")
    for step in range(1, NUM_TINTS + 1):
        drawing.rect(20 + 12 * step, y, 12, 11, f"{kind} t{step}")
    drawing.text(12 * NUM_TINTS + 38, y + 10, duration(largest))


def peers(report: Report) -> Figure | None:
    """Per rank, how long all others waited for it, by region."""
    blame = report.tables["blame"]
    foreign = blame[blame["rank"] != blame["peer"]]
    if foreign.empty:
        return None
    foreign = with_few_regions(foreign, "wait_ns")
    totals = foreign.pivot_table(index="peer", columns="region", values="wait_ns", aggfunc="sum")
    totals = totals.reindex(report.blame_matrix.columns).fillna(0.0)
    order = totals.sum().sort_values(ascending=False, kind="stable").index.tolist()
    series = [
        (f"wait t{max(2, 8 - 2 * i)}", short(region), totals[region].tolist())
        for i, region in enumerate(order)
    ]
    return _bars("peers", "Wait of all other ranks, by the rank they waited for", totals, series)


def rank_bars(report: Report) -> Figure | None:
    """Work and wait per rank, per track of it."""
    table = report.tables["imbalance_by_rank"]
    if table.empty:
        return None
    by_rank = table.set_index("rank")
    series = [
        (name, name, (by_rank[f"{name}_ns"] / by_rank["tracks"]).tolist())
        for name in ("work", "wait")
    ]
    return _bars("ranks", "Work and wait per rank, mean over its tracks", by_rank, series)


def _bars(
    name: str, title: str, ranks: pd.DataFrame, series: list[tuple[str, str, list[float]]]
) -> Figure:
    """A bar per rank, stacked of (class, escaped name, values in ns)."""
    left, top = 52.0, 20.0 * (1 + (len(series) + 1) // 2)
    drawing = Drawing(HALF, top + _BARS_HEIGHT + 40)
    for i, (kind, text, _) in enumerate(series):
        drawing.legend(i % 2 * 230, 4 + 20 * (i // 2), [(kind, text)])
    largest = max(sum(values) for values in zip(*(v for *_, v in series), strict=True)) or 1.0
    size, unit = unit_of(largest)
    rows = Axis(0.0, largest / size, top + _BARS_HEIGHT, top)
    for tick in ticks(0.0, largest / size, 5):
        drawing.line(left, rows(tick), HALF, rows(tick))
        drawing.text(left - 6, rows(tick) + 4, f"{tick:g}", "end")
    width = (HALF - left) / len(ranks)
    every = max(1, -(-28 // int(max(1, width))))
    for i, rank in enumerate(ranks.index.tolist()):
        below = 0.0
        for kind, text, values in series:
            y, y0 = rows((below + values[i]) / size), rows(below / size)
            tip = f"rank {rank}, {text}: {duration(values[i])}"
            drawing.rect(left + (i + 0.1) * width, y, 0.8 * width, max(0, y0 - y - 1), kind, tip)
            below += values[i]
        if i % every == 0:
            drawing.text(left + (i + 0.5) * width, top + _BARS_HEIGHT + 16, str(rank), "middle")
    drawing.text(
        (left + HALF) / 2, top + _BARS_HEIGHT + 34, f"rank; the bars are in {unit}", "middle"
    )
    return drawing.figure(name, title)


def regions(report: Report) -> Figure | None:
    """The time of each region, over all tracks, as a bar; the longest first."""
    rows = sorted(report.rows("regions"), key=lambda row: -row["total_ns"])[:_MOST_REGIONS]
    if not rows:
        return None
    left = 14 + LETTER * max(len(short(row["region"])) for row in rows)
    drawing = Drawing(WIDTH, 22.0 * len(rows) + 4)
    axis = Axis(0.0, rows[0]["total_ns"], left, WIDTH - 130)
    for i, row in enumerate(rows):
        y, share = 22.0 * i, percent(row["share"])
        drawing.text(left - 8, y + 14, short(row["region"]), "end")
        drawing.rect(left, y + 2, axis(row["total_ns"]) - left, 16, row["category"])
        text = f"{duration(row['total_ns'])}, {share}"
        drawing.text(axis(row["total_ns"]) + 8, y + 14, label(text))
    return drawing.figure("regions", "Time in each region, all tracks together, of their time")


def wait_distribution(report: Report) -> Figure | None:
    """How long single waits last: a histogram per region over log10(ns), four bars an octave."""
    table = report.histogram
    table = table[table["category"].isin(["wait", "sync"])]
    if table.empty:
        return None
    category_of = dict(zip(table["region"], table["category"], strict=True))
    table = with_few_regions(table, "events")
    width = float(np.log10(2)) / _BARS_PER_OCTAVE
    position = np.floor(np.log10(table["from_ns"]) / width + 1e-6) * width
    counts = table.assign(position=position).groupby(["region", "position"])["events"].sum()
    axis = Axis(float(position.min()), float(position.max()) + width, 8.0, HALF - 8)
    totals = counts.groupby("region").sum().sort_values(ascending=False, kind="stable")
    regions = totals.index.tolist()
    height = 62.0
    drawing = Drawing(HALF, height * len(regions) + 40)
    for i, region in enumerate(regions):
        bottom = (i + 1) * height - 4
        rows = counts[region]
        drawing.text(8, bottom - height + 18, f"{short(region)}: {rows.sum():,}")
        for place, number in rows.items():
            x, tall = axis(place), (height - 24) * number / rows.max()
            tip = f"{number:,} waits of about {duration(10 ** (place + width / 2))}"
            kind = category_of.get(region, "wait")
            drawing.rect(x, bottom - tall, axis(place + width) - x - 0.6, tall, kind, tip)
        drawing.line(8, bottom, HALF - 8, bottom)
    bottom = height * len(regions)
    for tick in _ticks(axis.low, axis.high):
        size, unit = unit_of(2 * tick)
        x = axis(float(np.log10(tick)))
        drawing.text(x, bottom + 14, f"{tick / size:g} {unit}", "middle")
    drawing.text(
        HALF / 2, bottom + 32, "how long a wait lasts; the height is how many do", "middle"
    )
    return drawing.figure("wait-distribution", "How long single waits last, by region")


def _ticks(first: float, last: float) -> list[int]:
    """Round numbers of ns from 10^first to 10^last: powers of ten, and 2 and 5 if there are few."""
    steps = (1,) if last - first >= 2 else (1, 2, 5)
    powers = range(int(first), int(last) + 1)
    found = [step * 10**power for power in powers for step in steps]
    return [tick for tick in found if 10**first <= tick <= 10**last]
