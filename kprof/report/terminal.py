"""The report in a terminal: the verdict, the findings, then the tables, on one screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kprof.analysis.explain.sentences import by_design, limit_sentence
from kprof.analysis.wording import duration, members, percent
from kprof.capture.printable import printable
from kprof.report.rates import has_ceilings, rate_cell, rate_columns, rate_rows, without_bytes

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table

    from kprof.report.model import Report

_MAX_ROWS: Final = 16


def render_terminal(report: Report) -> RenderableType:
    """A rich renderable; print it with a rich Console."""
    from rich.console import Group

    command = " ".join(report.manifest.command)
    parts = [_line(command, "dim"), _line(report.size, "dim"), _line("")]
    parts += [_line(f"! {doubt.sentence}.", "yellow") for doubt in report.found.banners]
    if report.found.banners:
        parts.append(_line(""))
    parts.append(_line(f"{report.verdict}.", "bold"))
    if report.advice:
        parts.append(_line(f"What to do: {report.advice}."))
    if report.found.design and (command := report.command_for(report.found.design)):
        parts.append(_line(command, "cyan"))
    if report.found.about:
        parts += [_line(""), _line(f"{report.found.about}.", "dim")]
    parts += [_line(""), *_findings(report)]
    if not report.are_times_known:
        return Group(*parts, _counts(report), *_notes(report))
    parts += [_efficiency_line(report), _line(""), _ranks(report), _regions(report)]
    if report.blame_matrix.to_numpy().sum() > 0:
        parts.append(_blame(report))
    parts += _achieved(report)
    return Group(*parts, *_notes(report))


def _notes(report: Report) -> list[RenderableType]:
    """Notes that follow the findings."""
    doubts = [doubt for doubt in report.found.doubts if not doubt.is_grave]
    missing = [f"not shown: {names}: {reason}" for reason, names in report.reasons.items()]
    return [
        *(_line(f"note: {doubt.sentence}; {doubt.remedy}", "dim") for doubt in doubts),
        *(_line(text, "cyan") for text in missing if report.are_times_known),
    ]


def _line(text: str, style: str = "") -> RenderableType:
    """One line of text: names from the capture must not act as markup or end the line."""
    from rich.text import Text

    return Text(printable(text), style=style)


def _efficiency_line(report: Report) -> RenderableType:
    row = next(iter(report.rows("efficiency")), None)
    if row is None:
        return _line("efficiency: not known", "dim")
    return _line(
        f"parallel efficiency {percent(row['parallel_efficiency'])} = load balance "
        f"{percent(row['load_balance'])} "
        f"x communication efficiency {percent(row['communication_efficiency'])}"
        + (f", without {members('call', report.warm_up)}, a warm-up" if report.warm_up else "")
    )


def _findings(report: Report) -> list[RenderableType]:
    """The findings, with number and share next to their sentences, then the rest."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for number, finding in enumerate(report.findings, start=1):
        share = "" if finding.share is None else f"-{percent(finding.share)}"
        grid.add_row(
            str(number),
            _line(share, "bold red"),
            _line(finding.sentence, "bold" if number == 1 else ""),
        )
        for detail in (*finding.details, f"What to do: {finding.advice}"):
            grid.add_row("", "", _line(detail, "dim"))
        if command := report.command_for(finding):
            grid.add_row("", "", _line(command, "cyan"))
        grid.add_row("", "", "")
    rest = report.found.rest
    parts: list[RenderableType] = [grid] if report.findings else []
    if rest.sentence and rest.sentence != report.verdict:
        parts.append(_line(f"{rest.sentence}."))
    if rest.below:
        parts.append(_line(f"{rest.below}."))
    others = [limit for limit in rest.limits if limit_sentence(limit) != report.verdict]
    parts += [_line(f"{by_design(limit)}.", "dim") for limit in others]
    return [*parts, _line("")] if parts else []


@dataclass(frozen=True)
class Uncut:
    """A table that stays as wide as its cells on a narrow terminal, where rich would cut numbers.

    Print it with crop=False.
    """

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render at the natural width."""
        from rich.measure import Measurement

        wide = options.update(max_width=10_000)
        yield from console.render(
            self.table, options.update(width=Measurement.get(console, wide, self.table).maximum)
        )


def _titled(title: str, table: Table, num_rows: int = 0, what: str = "") -> RenderableType:
    """A table under a title line. Rich would wrap the table's own title at the table's width."""
    from rich.console import Group

    parts = [_line(title, "bold"), Uncut(table)]
    if num_rows > _MAX_ROWS:
        more = f"  {num_rows - _MAX_ROWS:,} more {what}: --json has them all"
        parts += [_line(more, "dim"), _line("")]
    return Group(*parts)


def _table(columns: list[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def _ranks(report: Report) -> RenderableType:
    shown, ranks = report.telling_ranks(_MAX_ROWS), report.rows("imbalance_by_rank")
    # One rank has nobody to be compared with.
    likes = [] if len(ranks) == 1 else ["vs other" if len(ranks) == 2 else "vs median"]
    table = _table(["rank", "spans", "work", *likes, "wait", "load balance"])
    for row in (row for row in ranks if row["rank"] in shown):
        table.add_row(
            str(row["rank"]),
            f"{row['events']:,}",
            duration(row["work_ns"]),
            *([f"{row['work_vs_median']:.2f}x"] if likes else []),
            duration(row["wait_ns"]),
            percent(row["load_balance"]),
        )
    title = "Ranks (work and wait are summed over blocks, or warps)"
    return _titled(title, table, len(ranks), "ranks")


def _achieved(report: Report) -> list[RenderableType]:
    """Rates of regions that count bytes or operations, with the device's ceiling if it is known."""
    rows = rate_rows(report)
    if not rows:
        return []
    columns = rate_columns(rows)
    table = _table(["region", "rank", *columns])
    for row in rows[:_MAX_ROWS]:
        cells = [rate_cell(row, column) for column in columns]
        table.add_row(printable(row["region"]), str(row["rank"]), *cells)
    parts = [_titled("Rates", table, len(rows), "rows")]
    if silent := without_bytes(report):
        parts.append(_line(silent, "dim"))
    if not has_ceilings(rows):
        parts.append(
            _line("kprof doctor --measure, before recording, tells what the device can do", "dim")
        )
    return parts


def _counts(report: Report) -> RenderableType:
    """For runs without usable times: spans, and bytes where any are counted."""
    shown, ranks = report.telling_ranks(_MAX_ROWS), report.rows("imbalance_by_rank")
    counted = {"spans": "events"}
    if any(row["bytes"] for row in ranks):
        counted["bytes"] = "bytes"
    table = _table(["rank", *counted])
    for row in (row for row in ranks if row["rank"] in shown):
        table.add_row(str(row["rank"]), *(f"{row[name]:,}" for name in counted.values()))
    return _titled("Ranks", table, len(ranks), "ranks")


def _regions(report: Report) -> RenderableType:
    regions = report.rows("regions")
    error = max((row["percentile_error"] for row in regions), default=0.0)
    names = [f"~{name}" if error else name for name in ("median", "p95", "p99")]
    table = _table(["region", "category", "count", "total", *names, "max", "of the blocks' time"])
    for row in regions[:_MAX_ROWS]:
        times = [duration(row[f"{name}_ns"]) for name in ("total", "median", "p95", "p99", "max")]
        name, category = _line(str(row["region"])), str(row["category"])
        table.add_row(name, category, f"{row['count']:,}", *times, percent(row["share"]))
    title = f"Regions (~ estimated, within {100 * error:.1f} %)" if error else "Regions"
    return _titled(title, table, len(regions), "regions")


def _blame(report: Report) -> RenderableType:
    matrix = report.blame_matrix
    order = matrix.sum(axis=0).sort_values(ascending=False, kind="stable").index[:_MAX_ROWS]
    shown: pd.DataFrame = matrix[sorted(order)]
    shown = shown.loc[sorted(shown.sum(axis=1).nlargest(_MAX_ROWS).index)]
    table = _table(["rank", *map(str, shown.columns)])
    for rank, row in zip(shown.index.tolist(), shown.to_numpy(), strict=True):
        table.add_row(str(rank), *[duration(value) if value else "-" for value in row.tolist()])
    title = "Wait of a rank (row) for a rank (column)"
    if any(matrix.at[rank, rank] for rank in matrix.index if rank in matrix.columns):
        title += "; a rank that sends to itself waits for itself"
    if report.waits_for_nobody:
        title += f"; {report.waits_for_nobody}"
    return _titled(title, table, len(matrix), "ranks")
