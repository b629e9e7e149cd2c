"""The rest: what the calls are made of that no finding would take away, how fast that moves data,
and what would make it shorter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kprof.analysis.achieved import achieved_by_region
from kprof.analysis.findings import words
from kprof.analysis.findings.differences import By
from kprof.analysis.findings.explanation import Explanation
from kprof.analysis.findings.finding import Finding
from kprof.analysis.findings.found import Ingredient, Rest, limit_in_front
from kprof.analysis.findings.thresholds import (
    IS_LITTLE,
    LEAST_GAIN,
    LEAST_GAIN_ONCE,
    LEAST_PART,
    NEAR_CEILING,
)
from kprof.analysis.replay.critical_path import critical_regions
from kprof.analysis.summary import Summary
from kprof.analysis.warmup import steady_efficiency
from kprof.analysis.wording import duration, listed, percent
from kprof.errors import ClockError, SelectionError

_MOST_NAMED: Final = 3


def rest_of(
    summary: Summary,
    explanation: Explanation,
    findings: Sequence[Finding],
    *,
    is_across_ranks: bool,
) -> Rest:
    """How much the findings explain together, and what is left; `is_across_ranks` is whether they
    could tell what one rank costs the others."""
    explained = min(1.0, sum(finding.share for finding in findings))
    useful = None
    if summary.trace.is_on_one_clock:
        efficiency = steady_efficiency(summary)["parallel_efficiency"]
        useful = float(efficiency.iloc[0]) if len(efficiency) else 1.0
    unexplained = None if useful is None else max(0.0, 1.0 - explained - useful)
    made_of = _made_of(summary)
    parts = ingredients(summary, made_of)
    below = ""
    if (found := explanation.below) is not None:
        # What a reader of the counts would ask about, and why it is no finding.
        said = found.kind.looked_up(summary, found).sentence
        below = f"{said}, less than the {percent(LEAST_GAIN)} of a finding"
    seen = explanation.differences
    rest = Rest("", explained, useful, unexplained, explanation.limits, made_of, parts, below, seen)
    rest = replace(rest, refused=explanation.refused)
    is_design = limit_in_front(rest, findings) is not None
    if findings:
        text = _after_findings(rest, explanation.total_ns)
    elif rest.is_busy and not below and not (seen and seen[0].share >= LEAST_GAIN_ONCE):
        work = "the blocks in use do" if is_design else "blocks do"
        else_ = " else" if is_design else ""
        text = f"Nothing{else_} stands out: {work} useful work {percent(useful or 0.0)} of the time"
        text += _speed(parts, "; ")
    elif seen and seen[0].by is By.EVENT:
        text = f"One event stands out, perhaps by chance: {seen[0].sentence}"
    elif seen:
        no_place = "No other place alone" if is_design else "No place alone"
        text = f"{no_place} costs {percent(explanation.least_share)}, but {seen[0].sentence}"
    else:
        least = percent(explanation.least_share)
        text = f"No rank, block, SM, link, region or call costs {least}"
        if not is_across_ranks:
            text = (
                f"Within a rank, no block, SM, region or call costs {least}; what ranks cost each "
                "other is not known"
            )
        elif is_design:
            text = f"Nothing else costs {least} or more"
        text += _path(made_of)
    return replace(rest, sentence=text)


def _after_findings(rest: Rest, total_ns: float) -> str:
    together = (
        f"Together, the findings would save {percent(rest.explained)} of {duration(total_ns)}"
    )
    if rest.differences:
        return f"{together}; the largest difference left: {rest.differences[0].sentence}"
    if rest.unexplained is None:
        return together
    if rest.unexplained < IS_LITTLE:
        return f"{together}; little else is lost"
    work = f"Blocks do useful work {percent(rest.useful or 0.0)} of the time"
    left = f"{percent(rest.unexplained)} is lost otherwise, and no single place explains it"
    return f"{together}. {work}; {left}{_path(rest.made_of)}{_speed(rest.ingredients)}"


def _path(made_of: tuple[tuple[str, float], ...]) -> str:
    """The largest parts of the critical path, or nothing where no part is large."""
    named = [
        f"{percent(share)} {what}" for what, share in made_of[:_MOST_NAMED] if share >= LEAST_PART
    ]
    return f". A typical call is {listed(named)}" if named else ""


def _speed(parts: Sequence[Ingredient], before: str = ". ") -> str:
    """How near the largest of them that moves data is to the device's limit: where no place
    differs, that is what is left to ask."""
    speed = next((part.speed for part in parts if part.speed), "")
    return f"{before}{speed}" if speed else ""


def _made_of(summary: Summary) -> tuple[tuple[str, float], ...]:
    """Regions on the critical path of the call of median length.

    Nothing where that is too large to walk.
    """
    try:
        table = critical_regions(summary)
    except (SelectionError, ClockError):
        return ()
    shares = table.groupby("region")["share"].sum().sort_values(ascending=False)
    return tuple((str(region), float(share)) for region, share in shares.items())


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
    speed = _speed_of(region, gb_s, of_ceiling) if moves else ""
    return Ingredient(region, share, gb_s, of_ceiling, advice, speed)


def _speed_of(region: str, gb_s: float | None, of_ceiling: float | None) -> str:
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
