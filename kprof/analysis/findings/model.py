"""What findings and doubts are.

docs/findings.md describes their kinds and fields for readers of JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from kprof.analysis.explain import ExplainedFinding, FindingKind, Limit, LimitKind
from kprof.analysis.explain.sentences import limit_advice, limit_sentence

# From this part of their time on blocks are busy enough that nothing has to be explained.
_IS_BUSY: Final = 0.8
# What every kernel that exchanges data has some of.
_EVERYWHERE: Final = (LimitKind.TRANSFERS, LimitKind.BARRIER, LimitKind.LAUNCHES)
# In place of a block: the line of the rank's kernel launches.
LAUNCHES: Final = -1


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
    SHARED_CORES = "shared_cores"  # more CPU ranks than cores
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
    """Something that the recording cannot say, and the kinds of findings that are left out because
    of it.

    `is_grave` is for what a reader must know before everything else; `evidence` are the numbers
    behind the sentence.
    """

    kind: DoubtKind
    sentence: str
    remedy: str
    takes_out: frozenset[FindingKind] = frozenset()
    is_grave: bool = False
    ranks: tuple[int, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Caused:
    """A wait that remains, under its cause: what `ranks` waited in `region` for `peers`, in ns
    summed over blocks, and its share of the blocks' time."""

    region: str
    ranks: tuple[int, ...]
    peers: tuple[int, ...]
    wait_ns: int
    share: float


@dataclass(frozen=True)
class Finding:
    """One thing that pays, in words and with its place in the trace.

    `cause` has the typed fields: kind, place, when, gain. Findings that rest on counts alone
    (`is_timed` is false) have no gain. `where_ns` is a stretch of the trace that shows it, on
    `tracks`: pairs of (rank, block), the one that shows it most and one to see beside it, block
    LAUNCHES for the rank's kernel launches. `evidence` is the table behind it.
    """

    id: str
    cause: ExplainedFinding
    sentence: str
    details: tuple[str, ...]
    advice: str
    is_timed: bool = True
    waits: tuple[Caused, ...] = ()
    where_ns: tuple[int, int] | None = None
    tracks: tuple[tuple[int, int], ...] = ()
    evidence: tuple[Mapping[str, Any], ...] = ()

    @property
    def kind(self) -> FindingKind:
        """One of the vocabulary."""
        return self.cause.kind

    @property
    def gain_ns(self) -> float | None:
        """What the calls looked at would be shorter together; None where only counts are known."""
        return self.cause.gain_ns if self.is_timed else None

    @property
    def share(self) -> float | None:
        """The gain's part of these calls."""
        return self.cause.share if self.is_timed else None

    @property
    def who_waits(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ranks that wait because of it, and those that they wait for."""
        waiting = {rank for wait in self.waits for rank in wait.ranks}
        peers = {rank for wait in self.waits for rank in wait.peers}
        return tuple(sorted(waiting)), tuple(sorted(peers))


@dataclass(frozen=True)
class DesignCost:
    """A limit that is the headline, with its place in the trace; fields as those of `Finding`."""

    limit: Limit
    where_ns: tuple[int, int] | None = None
    tracks: tuple[tuple[int, int], ...] = ()

    @property
    def id(self) -> str:
        """design/lock/lock/acquire, design/few_blocks"""
        return "/".join(["design", self.limit.kind.value, *filter(None, [self.limit.region])])

    @property
    def sentence(self) -> str:
        """What it is, and what it costs at most."""
        return limit_sentence(self.limit)

    @property
    def advice(self) -> str:
        """What would change the design."""
        return limit_advice(self.limit)


# What has a place in the trace that `kprof view` opens.
Shown = Finding | DesignCost


@dataclass(frozen=True)
class Ingredient:
    """A large part of a typical call's critical path: a region, or a gap, and its share, 0 to 1.

    `gb_s` is what the region moves, the mean over ranks, `of_ceiling` its share of a copy's; None
    where nobody counted bytes or measured the device. `rate` has both in words.
    """

    region: str
    share: float
    gb_s: float | None
    of_ceiling: float | None
    rate: str
    advice: str


@dataclass(frozen=True)
class Rest:
    """What the calls looked at are made of: shares of their time, 0 to 1.

    `explained` is what all findings would save together, `useful` what blocks worked in the mean
    (the parallel efficiency), `unexplained` what neither accounts for. `limits` is what the
    kernel's design costs at most, each by itself, the largest first. `made_of` are the regions on
    the critical path of the call of median length, the largest share first; `ingredients` says of
    the largest ones how fast they are and what to do about them. `below` says what stands out in
    the counts and costs too little for a finding.
    """

    sentence: str
    explained: float
    useful: float | None = None
    unexplained: float | None = None
    limits: tuple[Limit, ...] = ()
    made_of: tuple[tuple[str, float], ...] = ()
    ingredients: tuple[Ingredient, ...] = ()
    below: str = ""

    @property
    def is_busy(self) -> bool:
        """Whether blocks work nearly all of the time."""
        return self.useful is None or self.useful >= _IS_BUSY


@dataclass(frozen=True)
class Findings:
    """All that can be said: doubts, findings in the order in which to mend them, and the rest.

    `calls` are the ordinals of the calls that were replayed, of `num_calls`; they took `total_ns`
    together. `design` is the limit that the headline is about, if it is about one.
    """

    doubts: tuple[Doubt, ...]
    findings: tuple[Finding, ...]
    rest: Rest
    calls: tuple[int, ...] = ()
    num_calls: int = 0
    total_ns: float = 0.0
    design: DesignCost | None = None

    @property
    def headline(self) -> str:
        """What a reader sees first: that the run hung, what pays most, or why nothing does."""
        if self._hung is not None:
            return self._hung.sentence
        if self._limit is not None:
            return limit_sentence(self._limit)
        return self.findings[0].sentence if self.findings else self.rest.sentence

    @property
    def about(self) -> str:
        """Which calls the findings are about, where the headline is about a hang."""
        is_said = self._hung is not None and bool(self.findings or self.num_calls)
        return "What follows is about the calls that finished" if is_said else ""

    @property
    def advice(self) -> str:
        """What to do about what the headline says; empty where there is nothing to do."""
        if self._hung is not None:
            return self._hung.remedy
        if self._limit is not None:
            return limit_advice(self._limit)
        if self.findings:
            return self.findings[0].advice
        first = next(iter(self.rest.ingredients), None)
        if first is None or self.rest.is_busy:
            return ""
        return f"{first.region} is the largest part of a call: {first.advice}"

    @property
    def banners(self) -> tuple[Doubt, ...]:
        """The grave doubts beside the headline."""
        return tuple(doubt for doubt in self.doubts if doubt.is_grave and doubt is not self._hung)

    @property
    def _hung(self) -> Doubt | None:
        hung = (doubt for doubt in self.doubts if doubt.kind is DoubtKind.HUNG and doubt.is_grave)
        return next(hung, None)

    @property
    def shown(self) -> tuple[Shown, ...]:
        """What readers number: the findings, then the design if the headline is about it."""
        return (*self.findings, *([self.design] if self.design else []))

    @property
    def _limit(self) -> Limit | None:
        return limit_in_front(self.rest, self.findings)


def limit_in_front(rest: Rest, findings: Sequence[Finding | ExplainedFinding]) -> Limit | None:
    """The design, where it costs more than anything that stands out; what no design is without only
    where nothing stands out at all."""
    pays = max((finding.share or 0.0 for finding in findings), default=0.0)
    for limit in rest.limits:
        is_choice = limit.kind not in _EVERYWHERE
        if (is_choice and limit.share > pays) or (not findings and not rest.is_busy):
            return limit
    return None
