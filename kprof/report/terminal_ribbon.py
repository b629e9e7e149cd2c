"""The wait ribbon as text: half blocks in colour for a terminal, letters where it has no colours,
and coloured squares for Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from kprof.analysis.ribbon import Ribbon
from kprof.analysis.wording import duration
from kprof.report.figures.ribbon import (
    CULPRITS,
    OPACITY,
    REST_NAME,
    RIBBON_COLORS,
    hues,
    kind_shares,
    rgb,
)

# So many ranks have a line each; more have half of one.
_FEW: Final = 16
_MOST: Final = 48
_MOST_COLUMNS: Final = 160
_LETTERS: Final = "abcdefgh-"
# As the page's colours, as near as squares come; then own work, and nothing.
_SQUARES: Final = "🟥🟦🟨🟪🟫🟩🟧⬛🔳⬜◽"
_SQUARE_COLUMNS: Final = 40
# A square has no shades: this share of the blocks waits for the rank.
_LEAST_OF_A_SQUARE: Final = 0.1
_DARK: Final = 1
_LEAST: Final = 0.02


@dataclass(frozen=True)
class TerminalRibbon:
    """A wait ribbon as a rich renderable, as wide as there is room."""

    drawn: Ribbon

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A legend, the rows, and how long the time axis is."""
        rows, names = _chosen(self.drawn)
        margin = max(map(len, names)) + 1
        columns = max(8, min(_MOST_COLUMNS, options.max_width - margin - 1))
        shares, present = _narrowed(self.drawn, rows, columns)
        has_color = console.color_system is not None and not console.no_color
        yield _legend(self.drawn, shares, has_color)
        if has_color:
            yield from _halves(shares, present, names, margin)
        else:
            for name, of_row, there in zip(names, shares, present, strict=True):
                yield Text(name.rjust(margin - 1) + " " + _letters(of_row, there), no_wrap=True)
        over = self.drawn.over
        length = duration(over.end_ns - over.start_ns)
        width = max(shares.shape[1], len(length) + 3)
        yield Text(" " * margin + "0" + length.rjust(width - 1), no_wrap=True)
        if len(rows) < len(self.drawn.rows):
            which = "those that others wait for, and some of the others"
            yield Text(f"{len(rows)} of {len(self.drawn.rows):,} ranks: {which}", style="dim")


def _chosen(drawn: Ribbon) -> tuple[list[int], list[str]]:
    """Which rows fit: of many, the culprits and as many others, evenly apart."""
    ranks = [rank for rank, _ in drawn.rows]
    rows = list(range(len(ranks)))
    if len(ranks) > _MOST:
        named = [i for i in rows if ranks[i] in hues(drawn)]
        others = [i for i in rows if ranks[i] not in hues(drawn)]
        every = -(-len(others) // (_MOST - len(named)))
        rows = sorted(named + others[::every])
    return rows, [f"rank {ranks[i]}" for i in rows]


def _narrowed(drawn: Ribbon, rows: list[int], columns: int) -> tuple[Any, Any]:
    """Means over neighbouring bins: shares by colour (rows x columns x colours), and presence."""
    shares, present = kind_shares(drawn)[rows], drawn.present[rows]
    bins = -(-(drawn.over.end_ns - drawn.over.start_ns) // drawn.bin_ns)
    edges = np.linspace(0, bins, min(columns, bins) + 1).astype(int)[:-1]
    sizes = np.diff([*edges, bins])
    return (
        np.add.reduceat(shares[:, :bins], edges, axis=1) / sizes[:, None],
        np.add.reduceat(present[:, :bins], edges, axis=1) / sizes,
    )


def _legend(drawn: Ribbon, shares: Any, has_color: bool) -> Text:
    names = [f"rank {rank}" for rank in hues(drawn)]
    entries = dict(enumerate(names))
    entries[len(CULPRITS)] = REST_NAME
    text = Text("waits for")
    for i, name in entries.items():
        if (shares[..., i] > 0).any():
            color = "#{:02x}{:02x}{:02x}".format(*rgb(list(RIBBON_COLORS.values())[i][_DARK]))
            text.append("  ■" if has_color else f"  {_LETTERS[i]}", color if has_color else "")
            text.append(f" {name}")
    text.append("  ■" if has_color else "  .", RIBBON_COLORS["own"][_DARK] if has_color else "")
    return text.append(" own work" if has_color else " own work; capital: half of the blocks")


def _letters(shares: Any, present: Any) -> str:
    """A letter a cell: capital where at least half of the blocks wait."""
    line = ""
    for cell, there in zip(shares, present, strict=True):
        most = int(cell.argmax())
        if cell[most] >= _LEAST:
            line += _LETTERS[most].upper() if cell[most] >= 0.5 else _LETTERS[most]
        else:
            line += "." if there >= _LEAST else " "
    return line.rstrip()


def squares(drawn: Ribbon) -> str:
    """The ribbon as lines of squares, each as wide as two letters, with a legend."""
    rows, names = _chosen(drawn)
    shares, present = _narrowed(drawn, rows, _SQUARE_COLUMNS)
    known = [f"{_SQUARES[hue]} rank {rank}" for rank, hue in hues(drawn).items()]
    known += [f"{_SQUARES[len(CULPRITS)]} {REST_NAME}"] * bool((shares[..., -1] > 0).any())
    lines = [f"waits for {'  '.join(known)}  {_SQUARES[-2]} own work"]
    own = np.where(present >= _LEAST, len(CULPRITS) + 1, len(CULPRITS) + 2)
    shown = np.where(shares.max(axis=2) >= _LEAST_OF_A_SQUARE, shares.argmax(axis=2), own)
    for name, row in zip(names, shown, strict=True):
        line = "".join(_SQUARES[square] for square in row)
        lines.append(f"{name.rjust(max(map(len, names)))} {line}".rstrip())
    return "\n".join(lines)


def _halves(shares: Any, present: Any, names: list[str], margin: int) -> list[Text]:
    """Two rows to a line of half blocks, or one row on both halves where there are few."""
    step = 1 if len(names) <= _FEW else 2
    lines = []
    for i in range(0, len(names), step):
        below = min(i + step - 1, len(names) - 1)
        line = Text(names[i].rjust(margin - 1) + " ", no_wrap=True)
        for upper, lower in zip(
            _colors(shares[i], present[i]), _colors(shares[below], present[below]), strict=True
        ):
            line.append(*_half(upper, lower))
        lines.append(line)
    return lines


def _half(upper: str, lower: str) -> tuple[str, str]:
    """A character with two halves, and its style; "" is the terminal's own ground."""
    if not upper:
        return ("▄", lower) if lower else (" ", "")
    return ("▀", f"{upper} on {lower}") if lower else ("▀", upper)


def _colors(shares: Any, present: Any) -> list[str]:
    """The colour of every cell; "" where nothing runs."""
    pairs = [pair[_DARK] for pair in RIBBON_COLORS.values()]
    own = rgb(RIBBON_COLORS["own"][_DARK])
    found = []
    for cell, there in zip(shares, present, strict=True):
        most = int(cell.argmax())
        over = float(cell[most]) ** OPACITY if cell[most] >= _LEAST else 0.0
        mixed = [
            round(a * over + b * (1 - over)) for a, b in zip(rgb(pairs[most]), own, strict=True)
        ]
        is_there = over or there >= _LEAST
        found.append("#{:02x}{:02x}{:02x}".format(*mixed) if is_there else "")
    return found
