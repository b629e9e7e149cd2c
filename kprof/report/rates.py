"""The table of rates, and the regions that count no bytes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from kprof.analysis.wording import listed, percent
from kprof.report.blocks import Block, Column, Depth, Paragraph, Table, Tone

if TYPE_CHECKING:
    from kprof.report.model import Report

_MOST_NAMED: Final = 3


def rates(report: Report, depth: Depth) -> list[Block]:
    """Rates of regions that count bytes or operations, with the device's ceiling if it is known."""
    found = report.rows("achieved_by_region")
    if not found:
        return []
    rows = sorted(found, key=lambda row: (row["region"], row["rank"]))
    has_ceilings = any(math.isfinite(row["ceiling_share"]) for row in rows)
    cells_of = {
        "GB/s": (any(row["bytes"] for row in rows), _gb_s),
        "of the speed of a copy": (has_ceilings, _of_copy),
        "GFLOP/s": (any(row["flops"] for row in rows), _gflop_s),
    }
    shown = {name: cell for name, (is_there, cell) in cells_of.items() if is_there}
    table = Table(
        (Column("region", is_text=True), Column("rank"), *map(Column, shown)),
        tuple(
            (row["region"], str(row["rank"]), *(cell(row) for cell in shown.values()))
            for row in rows
        ),
        title="Rates",
        about="While the region was in use; only regions that count bytes or operations.",
        which="the first by name",
        depth=depth,
    )
    notes = filter(None, [_without_bytes(report), "" if has_ceilings else _NO_CEILINGS])
    return [table, *(Paragraph(note, tone=Tone.FINE, depth=depth) for note in notes)]


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
