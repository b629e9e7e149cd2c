"""What all figures share: colours, units, and how names from the capture get into them."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Final

from kprof.capture.printable import printable

if TYPE_CHECKING:
    import pandas as pd

Figure = dict[str, Any]


# More rows than that are thinner than a line of text, and a page of a thousand ranks would be too
# large.
_MAX_ROWS: Final = 128
_MAX_LETTERS: Final = 36
_MAX_REGIONS: Final = 8

# One colour per category in all figures; told apart by people who see no red and green, on white
# and on black.
CATEGORY_COLORS: Final = {
    "compute": "#2f9e77",
    "send": "#3f7fd0",
    "recv": "#7fb7ec",
    "wait": "#e0662f",
    "sync": "#e3b23c",
    "other": "#9aa3ad",
}


def label(name: object) -> str:
    """A name from the capture, safe in a Plotly text."""
    return html.escape(printable(str(name)), quote=True)


def short(name: object) -> str:
    """`label` of a name that fits a legend: the end of a long one says more than its beginning."""
    text = str(name)
    return label(text if len(text) <= _MAX_LETTERS else "…" + text[-_MAX_LETTERS:])


def figure(name: str, data: list[dict[str, Any]], height: int, **layout: Any) -> Figure:
    """A figure with the layout that all share; `name` is the id of its box in the page."""
    base = {
        "height": height,
        "margin": {"l": 70, "r": 20, "t": 10, "b": 45},
        "hoverlabel": {"align": "left"},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }
    return {"id": name, "data": data, "layout": base | layout}


def few_rows(grid: pd.DataFrame, what: str = "rank") -> tuple[pd.DataFrame, str]:
    """A grid with a row per rank as one that a screen can show, and the title of its axis.

    Neighbours share a row that shows the largest of each of their cells: one rank that stands out
    is still seen.
    """
    import pandas as pd

    size = -(-len(grid) // _MAX_ROWS)
    if size <= 1:
        return grid, what
    ranks = grid.index.tolist()
    groups = [ranks[i : i + size] for i in range(0, len(ranks), size)]
    rows = [grid.loc[group].max() for group in groups]
    names = [f"{group[0]}-{group[-1]}" if len(group) > 1 else f"{group[0]}" for group in groups]
    return pd.DataFrame(rows, index=names), f"{what} ({size} together: the most of any)"


def with_few_regions(table: pd.DataFrame, weight: str) -> pd.DataFrame:
    """A table by region; small regions are merged where the legend would outgrow the figure."""
    totals = table.groupby("region")[weight].sum().sort_values(ascending=False, kind="stable")
    if len(totals) <= _MAX_REGIONS:
        return table
    kept = set(totals.index[: _MAX_REGIONS - 1])
    others = f"{len(totals) - len(kept)} other regions"
    return table.assign(region=table["region"].where(table["region"].isin(kept), others))


def unit_of(max_ns: float) -> tuple[float, str]:
    """The unit in which numbers up to `max_ns` read well."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if max_ns >= 2 * size:
            return size, unit
    return 1.0, "ns"


def rounded(values: Any) -> list[Any]:
    """Four significant digits: the page holds no more than eyes can see."""
    return [float(f"{value:.4g}") for value in values]


def positions(values: Any) -> list[Any]:
    """Positions on a long axis need more digits than lengths."""
    return [float(f"{value:.7g}") for value in values]
