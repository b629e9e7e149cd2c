"""The table of rates: its columns, its cells, and the regions that count nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from kprof.analysis.wording import listed, percent

if TYPE_CHECKING:
    from kprof.report.model import Report

_GB_S: Final = "GB/s"
_OF_COPY: Final = "of the speed of a copy"
_GFLOP_S: Final = "GFLOP/s"
_MOST_NAMED: Final = 3


def rate_rows(report: Report) -> list[dict[Any, Any]]:
    """The rows of the table, by region and rank."""
    return sorted(report.rows("achieved_by_region"), key=lambda row: (row["region"], row["rank"]))


def has_ceilings(rows: list[dict[Any, Any]]) -> bool:
    """Whether it is known what any of the devices can do."""
    return any(math.isfinite(row["ceiling_share"]) for row in rows)


def rate_columns(rows: list[dict[Any, Any]]) -> list[str]:
    """The columns that have any number."""
    has = {
        _GB_S: any(row["bytes"] > 0 for row in rows),
        _OF_COPY: has_ceilings(rows),
        _GFLOP_S: any(row["flops"] > 0 for row in rows),
    }
    return [name for name, is_there in has.items() if is_there]


def rate_cell(row: dict[Any, Any], column: str) -> str:
    """A number of a row, or nothing where its region does not count that."""
    if column == _GB_S:
        return f"{row['gb_s']:.1f}" if row["bytes"] else ""
    if column == _GFLOP_S:
        return f"{row['gflop_s']:.1f}" if row["flops"] else ""
    return percent(row["ceiling_share"]) if math.isfinite(row["ceiling_share"]) else ""


def without_bytes(report: Report) -> str:
    """Which regions that send or receive have no rate, the longest first.

    Empty if all have one, or none.
    """
    rated = {row["region"] for row in report.rows("achieved_by_region")}
    moving = [row for row in report.rows("regions") if row["category"] in ("send", "recv")]
    silent = [row["region"] for row in moving if row["region"] not in rated]
    if not rated or not silent:
        return ""
    more = ["others"] if len(silent) > _MOST_NAMED else []
    return f"{listed([*silent[:_MOST_NAMED], *more])}: no payload field `bytes`, so no rate"
