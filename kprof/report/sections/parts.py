"""What all sections are built of: figures, pairs, and columns that know their cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from kprof.analysis.wording import duration, percent
from kprof.report.blocks import Beside, Block, Cell, Column, Depth, Diagram, Section, Table
from kprof.report.figures.base import Figure

Figures: TypeAlias = dict[str, Figure]


class Of(NamedTuple):
    """A column, and how its cell is made of a row of numbers."""

    column: Column
    cell: Callable[[dict[Any, Any]], str | Cell]

    def only_on_pages(self) -> Of:
        """The same where a terminal has no room for it."""
        return Of(Column(self.column.name, self.column.is_text, Depth.PAGE), self.cell)


def words(name: str, key: str = "") -> Of:
    """A column of text; `key` is the name of its numbers in a row, by default its own."""
    return Of(Column(name, is_text=True), lambda row: str(row[key or name]))


def rank(name: str = "rank", key: str = "") -> Of:
    """A column of ranks."""
    return Of(Column(name), lambda row: str(row[key or name]))


def number(name: str, key: str = "") -> Of:
    """A column of whole numbers."""
    return Of(Column(name), lambda row: f"{row[key or name]:,}")


def time(name: str, key: str) -> Of:
    """A column of durations in ns."""
    return Of(Column(name), lambda row: duration(row[key]))


def share(name: str, key: str = "share") -> Of:
    """A column of shares, 0 to 1."""
    return Of(Column(name), lambda row: percent(row[key]))


def bad(name: str) -> Of:
    """A column of numbers that should be 0."""

    def cell(row: dict[Any, Any]) -> Cell:
        return Cell(f"{row[name]:,}", "bad" if row[name] else "")

    return Of(Column(name.replace("_", " ")), cell)


def table(rows: Sequence[dict[Any, Any]], *columns: Of, **about: Any) -> list[Block]:
    """A table with a row for each of `rows`, nothing without any; `about` are further fields of
    Table."""
    cells = tuple(tuple(of.cell(row) for of in columns) for row in rows)
    return [Table(tuple(of.column for of in columns), cells, **about)] if rows else []


def figure(figures: Figures, name: str, about: str) -> list[Block]:
    """A figure with a sentence on it; nothing where the report has no data for it."""
    return [Diagram(figures[name], about, depth=Depth.PAGE)] if name in figures else []


def figure_section(figures: Figures, name: str, id: str, title: str, about: str) -> list[Block]:
    """An open section with one figure; nothing where the report has no data for it."""
    if name not in figures:
        return []
    drawn = Diagram(figures[name], depth=Depth.PAGE)
    return [Section(id, title, (drawn,), about, is_open=True)]


def beside(*groups: Sequence[Block]) -> list[Block]:
    """Those of the groups that have anything, side by side."""
    shown = tuple(tuple(group) for group in groups if group)
    return [Beside(shown)] if shown else []
