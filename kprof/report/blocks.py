"""What a report or a comparison consists of: an ordered list of blocks, the same for every output.

A block holds words, numbers and drawings, and no markup. `compose.py`, `sections/` and
`difference.py` build blocks; `terminal.py`, `page.py` and `markdown.py` render them. JSON holds the
facts themselves (`machine.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from kprof.report.figures.base import Figure


class Depth(IntEnum):
    """How far a reader has to go for a block: an output shows all blocks up to its own depth."""

    SUMMARY = 0  # a comment on a pull request
    SCREEN = 1  # a terminal
    PAGE = 2  # a web page


class Tone(IntEnum):
    """How much weight a paragraph has."""

    PLAIN = 0
    FINE = 1  # beside the point
    GRAVE = 2  # to be read before everything else
    NOTE = 3  # what limits the conclusions
    REFUSED = 4  # what is not shown, and why
    COMMAND = 5  # to be typed


@dataclass(frozen=True)
class Header:
    """The command that was recorded, and the size of the recording."""

    command: str
    facts: tuple[str, ...]
    depth: Depth = Depth.SUMMARY


@dataclass(frozen=True)
class Headline:
    """The first sentence that readers see, and often the only one."""

    text: str
    depth: Depth = Depth.SUMMARY


@dataclass(frozen=True)
class Heading:
    """A title inside a section; links lead to `id`."""

    text: str
    id: str = ""
    depth: Depth = Depth.PAGE


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; `lead` is emphasised and comes first."""

    text: str
    lead: str = ""
    tone: Tone = Tone.PLAIN
    depth: Depth = Depth.SCREEN


@dataclass(frozen=True)
class Point:
    """One thing that pays: a finding, a limit of the design, or a large part of a call.

    `gain` is its share of the time, `where` says how much that is and in which calls, `place` is
    the line of its region ("kernel.hip:42"). `details` are sentences for outputs without a section
    of details; `detail` and `figure` (id, name) are what a page links to. `is_headline`: the
    headline right above says `fact`.
    """

    gain: str
    fact: str
    advice: str
    number: int = 0
    where: str = ""
    place: str = ""
    details: tuple[str, ...] = ()
    command: str = ""
    id: str = ""
    detail: str = "details"
    figure: tuple[str, str] | None = None
    picture: Figure | None = None
    is_headline: bool = False
    depth: Depth = Depth.SUMMARY


@dataclass(frozen=True)
class Points:
    """Things that pay, the largest first; a page shows `at_most` of them on its first screen."""

    points: tuple[Point, ...]
    at_most: int
    depth: Depth = Depth.SUMMARY


@dataclass(frozen=True)
class Bar:
    """Parts that add up to 100 %: (name, share from 0 to 1, class of its colour)."""

    parts: tuple[tuple[str, float, str], ...]
    depth: Depth = Depth.PAGE


@dataclass(frozen=True)
class Column:
    """A column of a table: numbers unless `is_text`."""

    name: str
    is_text: bool = False
    depth: Depth = Depth.SCREEN


@dataclass(frozen=True)
class Cell:
    """A cell; its `mark` is "bad", a category of regions, a verdict, or nothing."""

    text: str
    mark: str = ""


Row: TypeAlias = "Sequence[str | Cell]"


@dataclass(frozen=True)
class Table:
    """A table. Where an output cannot hold all rows, it keeps the most important ones, which are
    the first in `importance` (indices of rows; by default their order), and says what `which` they
    are and how many `what` there are."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    title: str = ""
    about: str = ""
    what: str = "rows"
    which: str = ""
    importance: tuple[int, ...] = ()
    depth: Depth = Depth.SCREEN

    def up_to(self, depth: Depth, at_most: int) -> tuple[list[Column], list[list[Cell]]]:
        """The columns and rows that an output of this depth shows."""
        shown = [i for i, column in enumerate(self.columns) if column.depth <= depth]
        kept = sorted((self.importance or range(len(self.rows)))[:at_most])
        rows = [[self.rows[number][i] for i in shown] for number in kept]
        cells = [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in rows]
        return [self.columns[i] for i in shown], cells

    def cut(self, at_most: int) -> str:
        """What is not shown, in a sentence; empty where all is."""
        if len(self.rows) <= at_most:
            return ""
        which = f"{self.which}; " if self.which else ""
        number = f"{at_most} of {len(self.rows):,} {self.what}"
        return f"{number}: {which}kprof report --json has them all."


@dataclass(frozen=True)
class Diagram:
    """A figure with a sentence on it. Outputs that cannot draw show the table `instead`."""

    figure: Figure | None
    about: str = ""
    instead: Table | None = None
    depth: Depth = Depth.SCREEN


@dataclass(frozen=True)
class Beside:
    """Blocks side by side where there is room."""

    groups: tuple[tuple[Block, ...], ...]
    depth: Depth = Depth.SCREEN


@dataclass(frozen=True)
class Section:
    """Blocks under a name; a page folds it and lists it in its contents, unless `is_open`."""

    id: str
    name: str
    blocks: tuple[Block, ...]
    about: str = ""
    is_open: bool = False
    depth: Depth = Depth.SUMMARY


Block: TypeAlias = (
    "Header | Headline | Heading | Paragraph | Points | Bar | Table | Diagram | Beside | Section"
)


def capitalised(text: str) -> str:
    """A sentence that began inside another one."""
    return text[:1].upper() + text[1:]


def flat(blocks: Iterable[Block], depth: Depth) -> list[Block]:
    """The blocks up to a depth in order, without the sections and pairs around them."""
    found: list[Block] = []
    for block in blocks:
        if block.depth > depth:
            continue
        if isinstance(block, Section):
            found += flat(block.blocks, depth)
        elif isinstance(block, Beside):
            found += [each for group in block.groups for each in flat(group, depth)]
        else:
            found.append(block)
    return found
