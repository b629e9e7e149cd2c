"""Blocks in a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from kprof.capture.printable import printable
from kprof.report.blocks import (
    Block,
    Depth,
    Diagram,
    Header,
    Heading,
    Headline,
    Paragraph,
    Points,
    Table,
    Tone,
    flat,
)
from kprof.report.compose import compose
from kprof.report.model import Report

_MAX_ROWS: Final = 16
_STYLES: Final = {
    Tone.PLAIN: "",
    Tone.FINE: "dim",
    Tone.GRAVE: "yellow",
    Tone.NOTE: "dim",
    Tone.REFUSED: "cyan",
    Tone.COMMAND: "cyan",
}
_MARKS: Final = {
    "slower": "red",
    "faster": "green",
    "added": "yellow",
    "removed": "yellow",
    "unclear": "cyan",
}


def render_terminal(report: Report) -> RenderableType:
    """A rich renderable; print it with a rich Console."""
    return render_blocks(compose(report, has_figures=False))


def render_blocks(blocks: Iterable[Block]) -> RenderableType:
    """What a terminal shows of these blocks."""
    return Group(*(part for block in flat(blocks, Depth.SCREEN) for part in _parts(block)))


def _parts(block: Block) -> list[RenderableType]:
    match block:
        case Header():
            return [_line(block.command, "dim"), _line(", ".join(block.facts), "dim"), _line("")]
        case Headline():
            return [_line(block.text, "bold")]
        case Heading():
            return [_line(block.text, "bold")]
        case Paragraph():
            return [_line(f"{_BEFORE.get(block.tone, '')}{_joined(block)}", _STYLES[block.tone])]
        case Points():
            return [_line(""), _points(block)]
        case Diagram(instead=Table() as table):
            return _table(table)
        case Table():
            return _table(block)
        case _:
            return []


_BEFORE: Final = {Tone.GRAVE: "! ", Tone.NOTE: "note: "}


def _joined(paragraph: Paragraph) -> str:
    return f"{paragraph.lead} {paragraph.text}" if paragraph.lead else paragraph.text


def _line(text: str, style: str = "") -> Text:
    """One line of text: names from the capture must not act as markup or end the line."""
    return Text(printable(text), style=style)


def _points(block: Points) -> RenderableType:
    """Number, gain and fact, with details below."""
    grid = RichTable.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for point in (point for point in block.points if point.depth <= Depth.SCREEN):
        number = str(point.number or "")
        grid.add_row(number, _line(point.gain, "bold red"), _line(f"{point.fact}.", "bold"))
        for detail in (*point.details, f"What to do: {point.advice}"):
            grid.add_row("", "", _line(f"{detail}.", "dim"))
        for line in filter(None, (point.place, point.command)):
            grid.add_row("", "", _line(line, "cyan"))
        grid.add_row("", "", "")
    return grid


@dataclass(frozen=True)
class Uncut:
    """A table that stays as wide as its cells on a narrow terminal, where rich would cut numbers.

    Print it with crop=False.
    """

    table: RichTable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(max_width=10_000)
        yield from console.render(
            self.table, options.update(width=Measurement.get(console, wide, self.table).maximum)
        )


def _table(block: Table) -> list[RenderableType]:
    """A table under its title. Rich would wrap the table's own title at the table's width."""
    columns, rows = block.up_to(Depth.SCREEN, _MAX_ROWS)
    table = RichTable(box=SIMPLE_HEAD)
    for column in columns:
        table.add_column(column.name, justify="left" if column.is_text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(_line(cell.text, _MARKS.get(cell.mark, "")) for cell in row))
    above = [_line("")] + ([_line(block.title, "bold")] if block.title else [])
    above += [_line(block.about, "dim")] if block.about else []
    cut = block.cut(_MAX_ROWS)
    return [*above, Uncut(table), *([_line(f"  {cut}", "dim")] if cut else [])]
