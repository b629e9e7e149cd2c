"""The report in a terminal: verdict first, findings, then the tables on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kprof.analysis.wording import duration, percent

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType
    from rich.table import Table

    from kprof.report.model import Report

_STYLES: Final = {"critical": "bold red", "major": "red", "minor": "yellow", "note": "cyan"}
_MAX_ROWS: Final = 16


def render_terminal(report: Report) -> RenderableType:
    """A rich renderable; print it with a rich Console."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(_headline(report), style="dim"), Text()]
    parts += [Text(report.verdict, style="bold"), Text(), _efficiency_line(report), Text()]
    parts += [_findings(report), _ranks(report), _regions(report)]
    if report.blame_matrix.to_numpy().sum() > 0:
        parts.append(_blame(report))
    parts += [Text(f"{name}: {sentence}", style="cyan") for name, sentence in _refusals(report)]
    return Group(*parts)


def _headline(report: Report) -> str:
    manifest = report.manifest
    command = " ".join(manifest.command)
    ranks = f"{len(manifest.ranks)} of {manifest.world_size} ranks"
    return (
        f"{command}\n{ranks}, {report.num_events} events, {report.num_launches} launches, "
        f"{duration(report.run_time_ns)} in kernels"
    )


def _efficiency_line(report: Report) -> RenderableType:
    from rich.text import Text

    table = report.efficiency
    if table is None or table.empty:
        return Text("efficiency: not known", style="dim")
    row = table.to_dict("records")[0]
    return Text(
        f"parallel efficiency {percent(row['parallel_efficiency'])} = load balance {percent(row['load_balance'])} "
        f"x communication efficiency {percent(row['communication_efficiency'])}"
    )


def _findings(report: Report) -> RenderableType:
    """Two columns, so that wrapped sentences stay beside their severity."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column()
    for finding in report.findings:
        severity = finding.severity.value
        grid.add_row(Text(severity, style=_STYLES[severity]), Text(finding.sentence))
        grid.add_row("", Text(finding.remedy, style="dim"))
        if command := report.command_for(finding):
            grid.add_row("", Text(command, style="cyan"))
        grid.add_row("", "")
    return grid


def _table(title: str, columns: list[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def _ranks(report: Report) -> Table:
    table = _table("Ranks", ["rank", "events", "work", "vs median", "wait", "load balance"])
    rows = report.imbalance_by_rank.to_dict("records")
    for row in rows[:_MAX_ROWS]:
        table.add_row(
            str(row["rank"]),
            str(row["events"]),
            duration(row["work_ns"]),
            f"{row['work_vs_median']:.2f}x",
            duration(row["wait_ns"]),
            percent(row["load_balance"]),
        )
    if len(rows) > _MAX_ROWS:
        table.caption = f"{len(rows) - _MAX_ROWS} more ranks: --json has them all"
    return table


def _regions(report: Report) -> Table:
    from rich.text import Text

    columns = [
        "region",
        "category",
        "count",
        "total",
        "median",
        "p95",
        "p99",
        "max",
        "of block time",
    ]
    table = _table("Regions", columns)
    for row in report.regions.to_dict("records")[:_MAX_ROWS]:
        times = [duration(row[f"{name}_ns"]) for name in ("total", "median", "p95", "p99", "max")]
        # Text: a region's name is data and may look like markup.
        name, category = Text(str(row["region"])), str(row["category"])
        table.add_row(name, category, str(row["count"]), *times, percent(row["share"]))
    return table


def _blame(report: Report) -> Table:
    matrix = report.blame_matrix
    order = matrix.sum(axis=0).sort_values(ascending=False).index[:_MAX_ROWS]
    shown: pd.DataFrame = matrix[sorted(order)]
    table = _table("Wait of a rank (row) for a rank (column)", ["rank", *map(str, shown.columns)])
    for rank, row in zip(shown.index.tolist()[:_MAX_ROWS], shown.to_numpy(), strict=False):
        table.add_row(str(rank), *[duration(value) if value else "-" for value in row.tolist()])
    if len(matrix.columns) > _MAX_ROWS or len(matrix) > _MAX_ROWS:
        table.caption = "the ranks waited for most; --json has them all"
    return table


def _refusals(report: Report) -> list[tuple[str, str]]:
    """Each reason once, with what it keeps from being known."""
    by_sentence: dict[str, list[str]] = {}
    for name, sentence in report.refused.items():
        reason = sentence.partition(" needs ")[2] or sentence
        by_sentence.setdefault(reason, []).append(name.replace("_", " "))
    return [(", ".join(names), f"needs {reason}") for reason, names in by_sentence.items()]
