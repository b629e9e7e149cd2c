"""What a typical call is made of, how fast that moves data, and what would make it shorter.

This is what is left to change where no rank, block, link or call stands out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from kprof.analysis.achieved import achieved_by_region
from kprof.analysis.findings.model import Ingredient
from kprof.analysis.summary import Summary
from kprof.analysis.wording import percent
from kprof.errors import SelectionError

_MOST_NAMED: Final = 3
_LEAST_SHARE: Final = 0.1
# From this part of a copy's speed on, more speed is hardly to be had.
_IS_NEAR: Final = 0.7
# Of a critical path: what lies between regions.
_OF_GAPS: Final = {
    "before the first event": "launch on all ranks at the same time: look at what delays the last",
    "between blocks": "use fewer blocks that each do more: a new one takes time to begin",
    "between launches": "fuse the launches, or capture them in a graph",
    "between regions": "put a region around what happens there, to see what it is",
}
_OF_ONE_RANK: Final = {
    "before the first event": "begin to record earlier, or start fewer blocks, to see what it is",
}
_OF_CATEGORIES: Final = {
    "compute": "make it faster, or do it while data is on its way",
    "wait": "use fewer trips, or give blocks other work while data is on its way",
    "sync": "wait for the data that a block needs, not for everybody or for a lock",
    "other": "look at what it does",
}
_MOVES: Final = "send fewer bytes or in fewer trips, use wider stores, or do other work meanwhile"
_IS_AT_CEILING: Final = "send fewer bytes, or do other work meanwhile: the device moves no more"
_IS_BELOW: Final = "use wider stores, more blocks, or fewer fences and flags for a byte"


def ingredients(summary: Summary, made_of: Sequence[tuple[str, float]]) -> tuple[Ingredient, ...]:
    """The largest parts of the critical path, each with its rate and what to do about it."""
    categories = {region.name: region.category.value for region in summary.trace.regions.regions}
    return tuple(
        _ingredient(summary, region, share, str(categories.get(region, "other")))
        for region, share in made_of[:_MOST_NAMED]
        if share >= _LEAST_SHARE
    )


def _ingredient(summary: Summary, region: str, share: float, category: str) -> Ingredient:
    gb_s, of_ceiling = _rate(summary, region)
    if category in ("send", "recv"):
        advice = _MOVES
        if of_ceiling is not None:
            advice = _IS_AT_CEILING if of_ceiling >= _IS_NEAR else _IS_BELOW
    else:
        gaps = _OF_GAPS if len(summary.trace.ranks) > 1 else _OF_GAPS | _OF_ONE_RANK
        advice = gaps.get(region) or _OF_CATEGORIES[category]
    return Ingredient(region, share, gb_s, of_ceiling, rate_words(gb_s, of_ceiling), advice)


def rate_of(summary: Summary, region: str | None) -> str:
    """How fast a region moves data against what the device can, in words; empty where unknown."""
    return rate_words(*_rate(summary, region)) if region else ""


def rate_words(gb_s: float | None, of_ceiling: float | None) -> str:
    """moves 176 GB/s per rank, 41 % of the speed of a copy"""
    if gb_s is None:
        return ""
    beside = f", {percent(of_ceiling)} of the speed of a copy" if of_ceiling is not None else ""
    return f"moves {gb_s:.3g} GB/s per rank{beside}"


def _rate(summary: Summary, region: str | None) -> tuple[float | None, float | None]:
    """GB/s of a region, the mean over ranks, and its share of a copy's; None where unknown."""
    try:
        table = achieved_by_region(summary)
    except SelectionError:
        return None, None
    rows = table[(table["region"] == region) & (table["bytes"] > 0)]
    if rows.empty:
        return None, None
    share = float(rows["ceiling_share"].mean())
    return float(rows["gb_s"].mean()), share if math.isfinite(share) else None
