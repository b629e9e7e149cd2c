"""The table of rates: its columns, its cells, and the regions that count nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from kprof.analysis.wording import listed, percent

if TYPE_CHECKING:
    import pandas as pd

    from kprof.report.model import Report

_GB_S: Final = "GB/s"
_OF_COPY: Final = "of the speed of a copy"
_GFLOP_S: Final = "GFLOP/s"
_MOST_NAMED: Final = 3


def rate_columns(rates: pd.DataFrame) -> list[str]:
    """The columns that have any number."""
    has = {
        _GB_S: bool((rates["bytes"] > 0).any()),
        _OF_COPY: bool(rates["ceiling_share"].notna().any()),
        _GFLOP_S: bool((rates["flops"] > 0).any()),
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
    """Which regions that send or receive have no rate, the longest first; empty if all have one."""
    regions, rates = report.tables["regions"], report.tables["achieved_by_region"]
    moving = regions[regions["category"].isin(["send", "recv"])]["region"]
    silent = [str(name) for name in moving if name not in set(rates["region"])]
    if not silent:
        return ""
    more = ["others"] if len(silent) > _MOST_NAMED else []
    return f"{listed([*silent[:_MOST_NAMED], *more])}: no payload field `bytes`, so no rate"
