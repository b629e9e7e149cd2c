"""The report of a comparison: what became slower or faster between two sides, in a terminal, as JSON and as
HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kprof import analysis
from kprof.analysis.comparison import CALL, LAUNCH
from kprof.analysis.wording import counted, duration, listed, percent
from kprof.report.machine import plain, table_rows
from kprof.report.page import render, write_page
from kprof.report.terminal import Uncut

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
    """What happened to the calls and launches, then to the region that changed most."""
    changed = table[table["verdict"].isin(["slower", "faster"])]
    if changed.empty:
        return _nothing_changed(table)
    whole = [
        _sentence(row, "A call" if row["level"] == CALL else f"A launch of {_kernel(row)}")
        for level, at_most in ((CALL, 1), (LAUNCH, 2))
        for row in changed[changed["level"] == level].to_dict("records")[:at_most]
    ]
    sentences = whole or ["No launch became slower or faster as a whole"]
    regions = changed[~changed["level"].isin([CALL, LAUNCH])]
    if len(regions):
        row = regions.to_dict("records")[0]
        sentences.append(_sentence(row, f"Region {row['region']} in the {row['level']}"))
    return ". ".join(sentences) + "."


def _nothing_changed(table: pd.DataFrame) -> str:
    """No change, or why it cannot be told."""
    unclear = table[(table["verdict"] == "unclear") & table["level"].isin([CALL, LAUNCH])]
    if len(unclear):
        base, candidate = unclear[["base_launches", "candidate_launches"]].min()
        return (
            f"Nothing can be said of {counted(int(base), 'call', 'calls')} against {int(candidate)}: it takes "
            f"{analysis.MIN_LAUNCHES} a side, not counting a slow first one, to tell a change from chance; record more "
            "calls, or give several captures a side (--base, --cand)."
        )
    both = table[~table["verdict"].isin(["added", "removed"])]
    gone = _names_of(table, "removed")
    come = _names_of(table, "added")
    if both.empty:
        return f"Nothing is in both sides to compare: {come} in place of {gone}."
    parts = ["No change: no launch and no region differs by more than its noise"]
    parts += [f"only the base has {gone}"] if gone else []
    parts += [f"only the candidate has {come}"] if come else []
    return "; ".join(parts) + "."


def _names_of(table: pd.DataFrame, verdict: str) -> str:
    """Kernels that are on one side only, or else regions."""
    rows = table[table["verdict"] == verdict]
    kernels = rows.loc[rows["level"] == LAUNCH, "kernel"]
    names = kernels if len(kernels) else rows["region"]
    return listed(list(dict.fromkeys(name or "the kernel" for name in names)))


def _kernel(row: dict[Any, Any]) -> str:
    return row["kernel"] or "the kernel"


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
    parts = [Uncut(table)] if table.row_count else []
    return Group(Text(report.verdict, style="bold"), *parts, Text(counts, style="dim"))


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
        "kernel": row["kernel"] or ("(all)" if row["level"] == CALL else ""),
        "region": row["region"] or f"(whole {row['level']})",
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
