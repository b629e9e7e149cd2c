"""What all figures share: colours, units, scales, and how names from the capture get into them."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import Any, Final

from kprof.analysis.wording import duration
from kprof.capture.printable import printable
from kprof.on_use import pd

_MAX_ROWS: Final = 64
_MAX_LETTERS: Final = 36
_MAX_REGIONS: Final = 8
_STEPS: Final = (1, 2, 5)


@dataclass(frozen=True)
class Figure:
    """A drawing in the page: its id, one line that says what it is, and the SVG element.

    `data` is what a script draws it from again, as JSON; without it the drawing is still.
    """

    id: str
    title: str
    svg: str
    data: object = None


# A colour means one thing in the whole page, on white and on black. People who see no red, no
# green or no blue tell them apart: a test works out how far.
CATEGORY_COLORS: Final = {
    "compute": "#1a7756",
    "send": "#0b3788",
    "recv": "#7bd9fc",
    "wait": "#f57f1c",
    "sync": "#f0d435",
    "other": "#949ca8",
}
PALETTE: Final = {
    name: (color, dark)
    for (name, color), dark in zip(
        (CATEGORY_COLORS | {"transfer": "#a944bf", "work": "#0e1c29"}).items(),
        ("#4fb08c", "#1145a6", "#9fcbf0", "#d4480f", "#e9cc32", "#6c737f", "#c863df", "#f3f5f8"),
        strict=True,
    )
}
# How deep a colour is where it stands for an amount: steps of a tint.
NUM_TINTS: Final = 8


def label(name: object) -> str:
    """A name from the capture as text of the page or of a Plotly figure."""
    return html.escape(printable(str(name)), quote=True)


def short(name: object) -> str:
    """`label` of a name that fits a legend: the end of a long one says more than its beginning."""
    text = str(name)
    return label(text if len(text) <= _MAX_LETTERS else "…" + text[1 - _MAX_LETTERS :])


def described(span: dict[Any, Any]) -> str:
    """What a span is, as text of the page or of a Plotly figure."""
    peer = f", rank {span['peer']}" if span["peer"] >= 0 else ""
    return f"{label(span['region'])}{peer}: {duration(span['end_ns'] - span['start_ns'])}"


def few_rows(grid: pd.DataFrame, what: str) -> tuple[pd.DataFrame, str]:
    """A grid with a row per rank (or block) as one that a screen can show, and the axis's title.

    Neighbours share a row that shows the largest of each of their cells: one rank that stands out
    is still seen.
    """
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


def ticks(low: float, high: float, at_most: int, *, whole: bool = False) -> list[float]:
    """Round numbers from `low` to `high`: 1, 2 or 5 times a power of ten apart."""
    if high <= low:
        return [low]
    power = math.floor(math.log10((high - low) / at_most))
    widths = [step * 10.0**exponent for exponent in (power, power + 1) for step in _STEPS]
    fits = [width for width in widths if (high - low) / width <= at_most]
    width = next(width for width in fits if not whole or width >= 1)
    first, last = math.ceil(low / width - 1e-9), math.floor(high / width + 1e-9)
    return [round(i * width, 10) for i in range(first, last + 1)]


def tint(value: float, largest: float) -> int:
    """The step of a tint, 0 to NUM_TINTS; only nothing at all is 0."""
    return math.ceil(NUM_TINTS * min(1.0, value / largest) - 1e-9) if largest > 0 else 0
