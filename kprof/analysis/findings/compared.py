"""What has nothing to be compared with: one rank, one block, one call, part of a launch."""

from __future__ import annotations

from kprof.analysis.findings.doubt import Doubt, DoubtKind
from kprof.analysis.findings.finding import RestsOn
from kprof.analysis.summary import Summary


def nothing_to_compare(summary: Summary) -> Doubt | None:
    """One rank with one block: nothing has its like."""
    ranks, blocks = summary.row(
        "SELECT count(DISTINCT rank), count(DISTINCT (rank, block)) FROM tracks"
    )
    if ranks != 1:
        return None
    selection = summary.trace.selection
    is_part = selection.ranks is not None or selection.blocks is not None
    verb, past = ("select", "selected") if is_part else ("record", "recorded")
    if blocks == 1:
        return Doubt(
            DoubtKind.ONE_BLOCK,
            f"Only one block was {past}: there is nothing to compare it with",
            f"{verb} more ranks or blocks to compare them",
        )
    if summary.trace.manifest.world_size == 1:
        return None  # there is no other
    if any(rule.in_block for rule in summary.trace.regions.flows):
        return None  # a kernel for one GPU, whose warps wait for each other
    return Doubt(
        DoubtKind.ONE_RANK,
        f"Only one rank was {past}: kprof cannot tell who waits for whom",
        f"{verb} all ranks to compare them",
    )


def one_call(summary: Summary) -> Doubt | None:
    """One call says nothing about when."""
    if summary.row("SELECT count(DISTINCT ordinal) FROM spans_of_launches") != (1,):
        return None
    return Doubt(
        DoubtKind.ONE_CALL,
        "Only one call was recorded: kprof cannot tell what is chance and what recurs",
        "record ten calls or more",
    )


def part_of_launches(summary: Summary) -> Doubt | None:
    """Blocks or warps that were left out may have had more work than those that are there."""
    if summary.trace.selection.blocks is not None:
        verb, past, how = "select", "selected", "--blocks"
    else:
        parts = sorted({info.recorded_part for info in summary.trace.ranks if info.recorded_part})
        if not parts:
            return None
        verb, past, how = "record", "recorded", ", ".join(parts)
    return Doubt(
        DoubtKind.PART_OF_LAUNCHES,
        f"Only part of each launch was {past} ({how}): its other blocks are unknown",
        f"{verb} whole launches to see how work spreads over blocks",
        frozenset({RestsOn.ALL_BLOCKS}),
        evidence={"part": how},
    )
