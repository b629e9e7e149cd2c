"""What a typical call is made of, how fast that moves data, and what would make it shorter.

This is what is left to change where no rank, block, link or call stands out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from kprof.analysis.achieved import achieved_by_region
from kprof.analysis.findings import words
from kprof.analysis.findings.found import Ingredient
from kprof.analysis.findings.thresholds import LEAST_PART, NEAR_CEILING
from kprof.analysis.summary import Summary
from kprof.analysis.wording import percent
from kprof.errors import SelectionError

_MOST_NAMED: Final = 3
# Of a critical path: what lies between regions.
_OF_GAPS: Final = {
    "before the first event": "launch on all ranks at the same time: look at what delays the last",
    "between blocks": "use fewer blocks that each do more: starting a block takes time",
    "between launches": "fuse the launches, or capture them in a graph",
    "between regions": "put a region around what happens there, to see what it is",
}
_GAPS_OF_ONE_RANK: Final = {
    "before the first event": "begin to record earlier, or start fewer blocks, to see what it is",
}
_OF_CATEGORIES: Final = {
    "compute": "make it faster, or overlap it with transfers",
    "wait": "batch transfers, or overlap them with other work",
    "sync": "wait only for the data that a block needs, not for all blocks or for a lock",
    "other": "look at what it does",
}
# For kernels of one GPU: no data travels there.
_CATEGORIES_OF_ONE_RANK: Final = {
    "compute": "make it faster, or overlap it with loads",
    "wait": "hand over larger items, or overlap waiting with other work",
}
_MOVES: Final = "send fewer bytes or larger batches, use wider stores, or overlap with other work"
_IS_AT_CEILING: Final = "send fewer bytes, or overlap with other work: the device is at its limit"
_IS_BELOW: Final = "use wider stores, more blocks, or fewer fences and flags per byte"


def ingredients(summary: Summary, made_of: Sequence[tuple[str, float]]) -> tuple[Ingredient, ...]:
    """The largest parts of the critical path, each with its rate and what to do about it."""
    categories = {region.name: region.category.value for region in summary.trace.regions.regions}
    return tuple(
        _ingredient(summary, region, share, str(categories.get(region, "other")))
        for region, share in made_of[:_MOST_NAMED]
        if share >= LEAST_PART
    )


def _ingredient(summary: Summary, region: str, share: float, category: str) -> Ingredient:
    gb_s, of_ceiling = rate_of(summary, region)
    if category in ("send", "recv"):
        advice = _MOVES
        if of_ceiling is not None:
            advice = _IS_AT_CEILING if of_ceiling >= NEAR_CEILING else _IS_BELOW
    else:
        gaps, categories = _OF_GAPS, _OF_CATEGORIES
        if len(summary.trace.ranks) == 1:
            gaps, categories = gaps | _GAPS_OF_ONE_RANK, categories | _CATEGORIES_OF_ONE_RANK
        advice = gaps.get(region) or categories[category]
    moves = category in ("compute", "send", "recv") and region not in _OF_GAPS
    speed = _speed(region, gb_s, of_ceiling) if moves else ""
    return Ingredient(region, share, gb_s, of_ceiling, advice, speed)


def _speed(region: str, gb_s: float | None, of_ceiling: float | None) -> str:
    """load reaches 79 % of a copy's speed: near the device's limit"""
    if gb_s is None:
        return f"{region} counts no bytes to compare with the device's limit"
    if of_ceiling is None:
        return f"{region} {words.rate_words(gb_s, None)}"
    near = ": near the device's limit" if of_ceiling >= NEAR_CEILING else ""
    return f"{region} reaches {percent(of_ceiling)} of a copy's speed{near}"


def rate_of(summary: Summary, region: str | None) -> tuple[float | None, float | None]:
    """GB/s of a region, the mean over ranks, and its share of a copy's; None where unknown."""
    if region is None:
        return None, None
    try:
        table = achieved_by_region(summary)
    except SelectionError:
        return None, None
    rows = table[(table["region"] == region) & (table["bytes"] > 0)]
    if rows.empty:
        return None, None
    share = float(rows["ceiling_share"].mean())
    return float(rows["gb_s"].mean()), share if math.isfinite(share) else None
