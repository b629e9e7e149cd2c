"""The table of rates, and the regions that count no bytes."""

from __future__ import annotations

import math
from typing import Any, Final

from kprof.analysis.wording import listed, percent
from kprof.report.blocks import Block, Column, Depth, Paragraph, Tone
from kprof.report.model import Report
from kprof.report.sections import parts
from kprof.report.sections.parts import Of, table

_MOST_NAMED: Final = 3


def rates(report: Report, depth: Depth) -> list[Block]:
    """Rates of regions that count bytes or operations, with the device's ceiling if it is known."""
    rows = report.rows("achieved_by_region")
    if not rows:
        return []
    rows = sorted(rows, key=lambda row: (row["region"], row["rank"]))
    has_ceilings = any(math.isfinite(row["ceiling_share"]) for row in rows)
    found = table(
        rows,
        parts.words("region"),
        parts.rank(),
        *([Of(Column("GB/s"), _gb_s)] if any(row["bytes"] for row in rows) else []),
        *([Of(Column("of the speed of a copy"), _of_copy)] if has_ceilings else []),
        *([Of(Column("GFLOP/s"), _gflop_s)] if any(row["flops"] for row in rows) else []),
        title="Rates",
        about="While the region was in use; only regions that count bytes or operations.",
        which="the first by name",
        depth=depth,
    )
    is_measured = any(info.ceilings for info in report.manifest.ranks)
    of_ceilings = "" if is_measured else _FROM_SHEETS if has_ceilings else _NO_CEILINGS
    notes = filter(None, [_without_bytes(report), of_ceilings])
    return [found, *(Paragraph(note, tone=Tone.FINE, depth=depth) for note in notes)]


_FROM_SHEETS: Final = (
    "The speed of a copy is that of the data sheet: half of the memory's, or that of the links. "
    "kprof doctor --measure before recording gives the device's own."
)
_NO_CEILINGS: Final = (
    "To compare with what the device can do, run kprof doctor --measure before recording."
)


def _gb_s(row: dict[Any, Any]) -> str:
    return f"{row['gb_s']:.1f}" if row["bytes"] else ""


def _gflop_s(row: dict[Any, Any]) -> str:
    return f"{row['gflop_s']:.1f}" if row["flops"] else ""


def _of_copy(row: dict[Any, Any]) -> str:
    return percent(row["ceiling_share"]) if math.isfinite(row["ceiling_share"]) else ""


def _without_bytes(report: Report) -> str:
    """Which regions that send or receive have no rate, the longest first; empty if all have one."""
    rated = {row["region"] for row in report.rows("achieved_by_region")}
    moving = [row for row in report.rows("regions") if row["category"] in ("send", "recv")]
    silent = [row["region"] for row in moving if row["region"] not in rated]
    if not silent:
        return ""
    more = ["others"] if len(silent) > _MOST_NAMED else []
    return f"No rate without a payload field `bytes`: {listed([*silent[:_MOST_NAMED], *more])}."
