"""The report of a comparison: what became slower or faster between two sides, in a terminal, as JSON and as
HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kprof import analysis
from kprof.analysis.wording import duration, percent
from kprof.report.machine import plain, table_rows
from kprof.report.page import render, write_page

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

    from kprof.trace import Trace

DIFF_SCHEMA_VERSION: Final = 1
BUCKETS: Final = ("slower", "faster", "added", "removed", "unclear", "same")
_STYLES: Final = {
    "slower": "red",
    "faster": "green",
    "added": "yellow",
    "removed": "yellow",
    "unclear": "cyan",
}


@dataclass(frozen=True)
class DiffReport:
    """The table of `kprof.analysis.diff` and the sentence that sums it up."""

    base: tuple[str, ...]
    candidate: tuple[str, ...]
    verdict: str
    table: pd.DataFrame

    @property
    def counts(self) -> dict[str, int]:
        """How many rows are in each bucket."""
        return {bucket: int((self.table["verdict"] == bucket).sum()) for bucket in BUCKETS}


def build_diff(base: Sequence[Trace], candidate: Sequence[Trace]) -> DiffReport:
    """Compare two sides of one or more runs; raises SelectionError when one is empty."""
    table = analysis.diff(base, candidate)
    return DiffReport(_names(base), _names(candidate), _verdict(table), table)


def _names(traces: Sequence[Trace]) -> tuple[str, ...]:
    return tuple(f"{' '.join(t.manifest.command)} ({t.manifest.created_utc})" for t in traces)


def _verdict(table: pd.DataFrame) -> str:
    """What happened to the launches, then to the region that changed most."""
    changed = table[table["verdict"].isin(["slower", "faster"])]
    if changed.empty:
        unclear = table[(table["verdict"] == "unclear") & (table["level"] == "launch")]
        if len(unclear):
            return (
                f"Nothing can be said: fewer than {analysis.MIN_LAUNCHES} launches a side; "
                "record more calls, or give several captures a side."
            )
        return "No change: no launch and no region differs by more than its noise."
    launches = changed[changed["level"] == "launch"]
    regions = changed[changed["level"] != "launch"]
    sentences = [
        _sentence(row, f"A launch of {row['kernel'] or 'the kernel'}")
        for row in launches.to_dict("records")[:2]
    ]
    if not sentences:
        sentences = ["No launch became slower or faster as a whole"]
    if len(regions):
        row = regions.to_dict("records")[0]
        sentences.append(_sentence(row, f"Region {row['region']} in the {row['level']}"))
    return ". ".join(sentences) + "."


def _sentence(row: dict[Any, Any], what: str) -> str:
    return (
        f"{what} is {row['verdict']} by {duration(abs(row['change_ns']))} "
        f"({percent(abs(row['change_share']))}): {duration(row['base_ns'])} to {duration(row['candidate_ns'])}"
    )


def diff_to_json(report: DiffReport) -> bytes:
    """{schema_version, base: [run], candidate: [run], verdict, counts: {bucket: rows}, rows: [row of
    `analysis.diff`]}."""
    document = {
        "schema_version": DIFF_SCHEMA_VERSION,
        "base": report.base,
        "candidate": report.candidate,
        "verdict": report.verdict,
        "counts": report.counts,
        "rows": table_rows(report.table),
    }
    return msgspec.json.format(msgspec.json.encode(document, enc_hook=plain), indent=1)


def render_diff_terminal(report: DiffReport, *, all_rows: bool = False) -> RenderableType:
    """A rich renderable; rows that are the same are counted and left out unless `all_rows`."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    for i, name in enumerate(
        ("", "kernel", "region", "level", "base", "candidate", "change", "", "95 % interval")
    ):
        table.add_column(name, justify="left" if i < 4 else "right")
    for row in shown_rows(report, all_rows=all_rows):
        style = _STYLES.get(row["verdict"], "")
        table.add_row(Text(row["verdict"], style=style), *[Text(row[name]) for name in _SHOWN])
    counts = ", ".join(f"{count} {bucket}" for bucket, count in report.counts.items() if count)
    return Group(Text(report.verdict, style="bold"), table, Text(counts, style="dim"))


_SHOWN: Final = ("kernel", "region", "level", "base", "candidate", "change", "share", "interval")


def shown_rows(report: DiffReport, *, all_rows: bool = False) -> list[dict[str, str]]:
    """Rows in words."""
    table = report.table
    rows = table if all_rows else table[table["verdict"] != "same"]
    return [_in_words(row) for row in rows.to_dict("records")]


def _in_words(row: dict[Any, Any]) -> dict[str, str]:
    def time(value: float, sign: str = "") -> str:
        if value != value:
            return "-"
        return (sign if value > 0 else "") + ("-" if value < 0 else "") + duration(abs(value))

    low, high = row["low_ns"], row["high_ns"]
    share = row["change_share"]
    return {
        "verdict": row["verdict"],
        "kernel": row["kernel"],
        "region": row["region"] or "(whole launch)",
        "level": row["level"],
        "base": time(row["base_ns"]),
        "candidate": time(row["candidate_ns"]),
        "change": time(row["change_ns"], "+"),
        "share": "-" if share != share else f"{100 * share:+.1f} %",
        "interval": "-" if low != low else f"{time(low, '+')} .. {time(high, '+')}",
    }


def write_diff_html(report: DiffReport, path: Path, *, force: bool = False) -> Path:
    """Write the comparison as one offline page; raises OutputExistsError unless `force`, and ExportError."""
    page = render(
        "diff.html.j2", report=report, rows=shown_rows(report, all_rows=True), shown=_SHOWN
    )
    return write_page(page, path, force=force)
