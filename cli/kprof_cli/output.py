"""How the commands print: tables for people, JSON and CSV for machines, notes on stderr.

Everything that kprof prints goes through this module, because it may contain names from untrusted
captures: control characters are escaped (kprof.capture.printable). Only CSV that does not go to a
terminal is left unchanged.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import typer

from kprof.capture.printable import printable, printable_json
from kprof.on_use import pd

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table

    from kprof.report.bars import MissedBar

EXIT_BAR_MISSED: Final = 3
# Grows when a field of any command's JSON changes its meaning or goes away; docs/json.md describes
# the fields.
JSON_SCHEMA_VERSION: Final = 2
# Wide enough for all our tables. A pipe has no width, and cutting cells would lose numbers.
_PIPE_WIDTH: Final = 250
# The width of result tables if the terminal's width is unknown.
_DEFAULT_WIDTH: Final = 80
_UNLIMITED: Final = 10_000
# Columns to drop first if the terminal is too narrow.
_DISPENSABLE: Final[tuple[str, ...]] = (
    "work_events",
    "violations_beyond_bound",
    "violations",
    "waiting_blocks",
    "blocks",
    "bound",
    "p99",
    "p95",
    "median",
    "category",
    "max",
)
_TIME_UNITS: Final = ((1e10, 1e9, "s"), (1e7, 1e6, "ms"), (1e4, 1e3, "us"), (0, 1, "ns"))


def console(*, is_error: bool = False) -> Console:
    """A console on stdout (or stderr) that never cuts cells when its output is piped."""
    from rich.console import Console

    stream = sys.stderr if is_error else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, emoji=False, markup=False)


def say(text: str = "", *, keep: str = "") -> None:
    """Print one line, with control characters escaped except those in `keep`."""
    _emit(printable(text, keep=keep), sys.stdout)


def stop_for(missed: Sequence[MissedBar]) -> None:
    """End the command with EXIT_BAR_MISSED if a `--fail-on` was true, and say which."""
    for bar in missed:
        note(bar.sentence)
    if missed:
        raise typer.Exit(EXIT_BAR_MISSED)


def program() -> str:
    """What starts kprof from here: `kprof`, or the path of the command that runs, if the shell does
    not find it by name."""
    started = Path(sys.argv[0])
    if started.name != "kprof" or shutil.which("kprof") is not None:
        return "kprof"
    return shlex.quote(str(started))


def note(text: str) -> None:
    """Print a line for people to stderr, so that it never mixes with results."""
    _emit(f"kprof: {printable(text)}", sys.stderr)


def _emit(text: str, stream: TextIO) -> None:
    """Write text that is safe to show. Escapes characters that the stream's encoding lacks."""
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)


def print_json(value: Mapping[str, object] | Sequence[object]) -> None:
    """Print an object of the schema in docs/json.md. A sequence becomes its `rows`.

    numpy scalars, decimals and timestamps become plain values, NaN becomes null.
    """
    document = value if isinstance(value, Mapping) else {"rows": value}
    versioned = {"schema_version": JSON_SCHEMA_VERSION} | dict(document)
    print_json_text(json.dumps(_plain(versioned), indent=1, allow_nan=False))


def print_json_text(text: str) -> None:
    """Print text that is JSON."""
    _emit(printable_json(text), sys.stdout)


def print_csv(rows: Iterable[Sequence[object]]) -> None:
    """Print CSV: unchanged to a file or pipe, with escapes on a terminal."""
    text = "".join(",".join(map(_csv_cell, row)) + "\n" for row in rows)
    if sys.stdout.isatty():
        _emit(printable(text.rstrip("\n"), keep="\n"), sys.stdout)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())


def _csv_cell(value: object) -> str:
    """Text is quoted, which tells an empty one from a missing one."""
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"'
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def print_frame(
    frame: pd.DataFrame, *, is_json: bool, limit: int = 0, has_one_unit: bool = False
) -> None:
    """Print an analysis table, as JSON or for people with readable times.

    Each time has its own unit unless `has_one_unit`, for a matrix whose cells are compared with
    each other.
    """
    values = {str(name): frame[name].tolist() for name in frame.columns}
    if is_json:
        rows = zip(*values.values(), strict=True)
        print_json([dict(zip(values, row, strict=True)) for row in rows])
        return
    unit = _common_unit(values) if has_one_unit else None
    columns = [_readable(name, cells, unit) for name, cells in values.items()]
    # All columns of a matrix matter equally: print all, in lines that wrap.
    columns, left_out = (columns, []) if has_one_unit else _fitting(columns, limit)
    readable = list(zip(*(cells for _, cells in columns), strict=True))
    print_rows([header for header, _ in columns], readable, limit=limit)
    if left_out:
        say(
            f"not shown for lack of width: {', '.join(left_out)}; "
            "a wider terminal or --json has them"
        )


Column = tuple[str, list[Any]]


def _fitting(columns: list[Column], limit: int) -> tuple[list[Column], list[str]]:
    """The columns that fit the terminal, and the names of the rest.

    Drops the least important first. A pipe or a file gets all, unless COLUMNS states a width.
    """
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return columns, []
    available = shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns
    left_out = []
    names = [name for name, _ in columns]
    candidates = [name for name in _DISPENSABLE if name in names]
    candidates += [name for name in reversed(names[1:]) if name not in candidates]
    for name in candidates:
        if sum(_column_width(column, limit) for column in columns) <= available:
            break
        columns = [column for column in columns if column[0] != name]
        left_out.append(name)
    return columns, [name for name in names if name in left_out]


def _column_width(column: Column, limit: int) -> int:
    """The width of a column in a table of print_rows, including padding."""
    name, cells = column
    shown = cells[:limit] if limit else cells
    return 3 + max(len(printable(str(cell))) for cell in (name, *shown))


def print_rows(headers: Sequence[str], rows: Sequence[Sequence[object]], *, limit: int = 0) -> None:
    """Print a table, with numbers right-aligned.

    Prints at most `limit` rows (0: all), and a note about the rest.
    """
    from rich.measure import Measurement

    shown = rows[:limit] if limit else rows
    table = table_of(headers, shown)
    # The width at which no cell is cut.
    out = console()
    unlimited = out.options.update(max_width=_UNLIMITED)
    show(table, min_width=Measurement.get(out, unlimited, table).maximum)
    if len(shown) < len(rows):
        say(f"... {len(rows) - len(shown)} more rows; --limit 0 prints all")


def table_of(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table with numbers right-aligned."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, header in enumerate(headers):
        is_number = all(_looks_like_number(row[i]) for row in rows[:50])
        table.add_column(
            Text(printable(header)), justify="right" if is_number else "left", no_wrap=is_number
        )
    for row in rows:
        table.add_row(*(Text("" if cell is None else printable(str(cell))) for cell in row))
    return table


def show(drawn: RenderableType, *, min_width: int = 0) -> None:
    """Print a rich renderable without trailing spaces, which are noise in files and diffs.

    Lets the terminal wrap lines that are too wide, because cutting them would lose numbers.
    """
    out = console()
    out.width = max(out.width, min_width)
    with out.capture() as captured:
        out.print(_Printable(drawn), crop=False)
    # Styles are rich's own escape sequences. The text between them is safe.
    lines = captured.get().strip("\n").split("\n")
    _emit("\n".join(line.rstrip() for line in lines), sys.stdout)


@dataclass(frozen=True)
class _Printable:
    """A rich renderable with control characters in its text escaped."""

    drawn: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for segment in console.render(self.drawn, options):
            text = printable(segment.text, keep="\n")
            yield segment if segment.control else Segment(text, segment.style)


def format_bytes(size_bytes: int) -> str:
    """12.3 MiB."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def format_ns(duration_ns: float) -> str:
    """346 us: three significant digits, as in the sentences of the report."""
    from kprof.analysis.wording import duration

    return duration(duration_ns)


def is_terminal() -> bool:
    """Whether results go to one that can be drawn on."""
    return console().is_terminal and not console().is_dumb_terminal


@contextmanager
def redrawn() -> Iterator[Callable[[RenderableType], None]]:
    """Yields a function that draws in the place of what it drew before."""
    from rich.live import Live

    with Live(console=console(), auto_refresh=False) as live:
        yield lambda drawn: live.update(_Printable(drawn), refresh=True)


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """A progress bar on stderr, if that is a terminal.

    Yields a function of (what is done, share from 0 to 1).
    """
    from rich.progress import Progress

    target = console(is_error=True)
    with Progress(console=target, transient=True, disable=not target.is_terminal) as bars:
        task = bars.add_task("", total=1.0)
        yield lambda what, share: bars.update(task, description=what, completed=share)


def _common_unit(columns: dict[str, list[Any]]) -> tuple[float, str]:
    """The scale and name of the unit for the largest time of a table."""
    times = [cell for name, cells in columns.items() if name.endswith("_ns") for cell in cells]
    largest = max((abs(time) for time in times if _is_finite_number(time)), default=0)
    return next((scale, unit) for least, scale, unit in _TIME_UNITS if largest >= least)


def _readable(
    name: str, values: list[Any], unit: tuple[float, str] | None
) -> tuple[str, list[Any]]:
    """The header and cells of a column for people. `unit` is for times; None gives each its own."""
    from kprof.analysis.wording import percent

    if name.endswith("_ns") and unit is None:
        return name[:-3], [format_ns(cell) if _is_finite_number(cell) else "" for cell in values]
    if name.endswith("_ns") and unit is not None:
        scale, unit_name = unit
        return f"{name[:-3]}, {unit_name}", [_fixed(cell, scale, 2) for cell in values]
    if name in ("share", "share_of_block"):
        return name, [percent(cell) if _is_finite_number(cell) else "" for cell in values]
    if any(isinstance(cell, float) for cell in values):
        return name, [_fixed(cell, 1, 3) for cell in values]
    is_whole = [isinstance(cell, int) and not isinstance(cell, bool) for cell in values]
    return name, [
        f"{cell:,}" if whole else cell for cell, whole in zip(values, is_whole, strict=True)
    ]


def _fixed(value: Any, scale: float, digits: int) -> Any:
    if not _is_finite_number(value):
        return "" if value is None or isinstance(value, float) else value
    return f"{value / scale:,.{digits}f}"


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _looks_like_number(cell: object) -> bool:
    """Whether a cell is a number, or a string made from one."""
    return cell in (None, "", "-") or str(cell).lstrip("-< ")[:1].isdigit()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int | bool):
        return value
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if hasattr(value, "item"):
        return _plain(value.item())
    return str(value)
