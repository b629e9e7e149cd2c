"""What a doubt is: something that a recording cannot say. And what has nothing to be compared with:
one rank, one block, one call, part of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kprof.analysis.findings.finding import RestsOn
from kprof.analysis.findings.kinds import resting_on
from kprof.analysis.summary import Summary


class DoubtKind(str, Enum):
    """The vocabulary of doubts."""

    HUNG = "hung"  # nothing moved for a while
    LOST_EVENTS = "lost_events"  # events were dropped
    MISSING_RANKS = "missing_ranks"  # ranks left nothing
    LOST_LAUNCHES = "lost_launches"  # processes or ranks that lost launches, or never recorded
    OPEN_SPANS = "open_spans"  # spans begun and never ended
    UNREADABLE = "unreadable"  # records that say less than they should
    UNALIGNED_CLOCKS = "unaligned_clocks"  # the ranks are not on one clock
    WEAK_CLOCKS = "weak_clocks"  # the one clock was not calibrated around all launches
    CAUSALITY = "causality"  # waits that ended before their send began
    SHARED_CORES = "shared_cores"  # CPU ranks without a core of their own
    GUESSED_METADATA = "guessed_metadata"  # what an import had to guess
    SAMPLED_CALLS = "sampled_calls"  # not all calls were replayed
    SAMPLED_FLOWS = "sampled_flows"  # not all sends and waits were paired
    UNMATCHED_FLOWS = "unmatched_flows"  # sends and waits without a partner
    ONE_CALL = "one_call"  # nothing can be said about when
    ONE_RANK = "one_rank"  # no other rank to compare with
    ONE_BLOCK = "one_block"  # no other block to compare with
    PART_OF_LAUNCHES = "part_of_launches"  # blocks or warps of launches were left out
    NO_FLOWS = "no_flows"  # no send is joined with a wait
    NO_WAITS = "no_waits"  # no wait was recorded
    NOT_REPLAYED = "not_replayed"  # why there is no what-if
    WARM_UP = "warm_up"  # first calls that were left out


@dataclass(frozen=True)
class Doubt:
    """Something that the recording cannot say.

    It `undermines` what kinds of findings rest on. `is_grave` is for what a reader must know before
    everything else; `evidence` are the numbers behind the sentence.
    """

    kind: DoubtKind
    sentence: str
    remedy: str
    undermines: frozenset[RestsOn] = frozenset()
    is_grave: bool = False
    ranks: tuple[int, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def takes_out(self) -> frozenset[str]:
        """The names of the kinds of findings that are left out because of it."""
        return frozenset(kind.name for kind in resting_on(self.undermines))


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
