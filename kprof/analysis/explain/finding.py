"""What a finding is: typed fields, one vocabulary of kinds, and where its numbers come from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from kprof.analysis.explain.engine import Explained, Explanation
from kprof.analysis.explain.excess import ALL
from kprof.analysis.explain.hypotheses.model import LEAST_OF_CALL, Hypothesis, Place, What, grows
from kprof.analysis.replay.elements import Family
from kprof.analysis.replay.spans import Bools, Floats


class FindingKind(str, Enum):
    """The vocabulary of kinds."""

    LATE_START = "late_start"  # a rank launches later than the others
    IDLE_GAP = "idle_gap"  # a place does nothing that is recorded
    SLOW = "slow"  # a place takes longer for the same work
    SLOW_TRANSFER = "slow_transfer"  # data takes longer on a link
    SLOW_EVENTS = (
        "slow_events"  # some events of a region take much longer than the others, all over the run
    )
    SLOW_CALL = "slow_call"  # all places take longer in some calls
    UNEVEN_WORK = "uneven_work"  # a place has more items than its likes
    UNEVEN_BLOCKS = "uneven_blocks"  # few blocks have most of a region's items


class When(str, Enum):
    """In which calls a finding is."""

    ONCE = "once"  # only one call was looked at: whether it comes again is not known
    ALWAYS = "always"
    SOMETIMES = "sometimes"
    PERIODIC = "periodic"
    GROWING = "growing"
    MOVING = "moving"


@dataclass(frozen=True)
class ExplainedFinding:
    """One thing that pays.

    `ranks` and `blocks` are empty where all of them are meant; `places` are the (rank, block) pairs
    of single blocks. `links` are (source, destination), -1 for every one. `calls` are the ordinals
    of those that have it, `costly_calls` of those that would get shorter; `when` is about these,
    and `period` is the n of "every n-th" call (or event, for slow events; else 0). `gain_ns` is
    what all calls together get shorter, on top of the findings before it, `alone_ns` what they
    would without those, `interval_ns` where the gain lies with 90 % when calls are drawn again,
    `share` its part of all calls, `factor` by how much what is found takes longer than its likes.
    """

    kind: FindingKind
    ranks: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    places: tuple[tuple[int, int], ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    region: str | None = None
    calls: tuple[int, ...] = ()
    when: When = When.ONCE
    period: int = 0
    gain_ns: float = 0.0
    interval_ns: tuple[float, float] = (0.0, 0.0)
    share: float = 0.0
    factor: float = 1.0
    gains_ns: tuple[float, ...] = ()
    costly_calls: tuple[int, ...] = ()
    alone_ns: float = 0.0

    @property
    def link(self) -> tuple[int, int] | None:
        """The link, where it is one."""
        return self.links[0] if len(self.links) == 1 else None


_OF_ONE_REGION = 0.85


def finding_of(explanation: Explanation, part: Explained) -> ExplainedFinding:
    """One part of an explanation as a finding."""
    hypothesis = part.hypothesis
    ordinals = explanation.basis.graph.spans.ordinals
    total = max(1.0, float(explanation.lengths_ns.sum()))
    kind = _kind(explanation, part)
    is_costly = _is_costly(hypothesis, part.gains_ns)
    when, period = _when(hypothesis, is_costly, part.gains_ns)
    gain = float(part.gains_ns.sum())
    where = _at(hypothesis.places, kind)
    ranks = np.unique(explanation.basis.graph.launch_rank)
    if kind is FindingKind.SLOW_CALL and len(ranks) == 1:
        where = replace(where, ranks=(int(ranks[0]),))
    return replace(
        where,
        region=_region(explanation, part),
        calls=tuple(ordinals[i] for i in np.flatnonzero(hypothesis.calls).tolist()),
        when=when,
        period=(kind is FindingKind.SLOW_EVENTS and hypothesis.period) or period,
        gain_ns=gain,
        interval_ns=_interval(part.gains_ns, explanation.lengths_ns),
        share=gain / total,
        factor=_factor(explanation, part),
        gains_ns=tuple(part.gains_ns.tolist()),
        costly_calls=tuple(ordinals[i] for i in np.flatnonzero(is_costly).tolist()),
        alone_ns=part.alone_ns,
    )


def _at(places: tuple[Place, ...], kind: FindingKind) -> ExplainedFinding:
    """A finding of which nothing is known but its kind and where it is."""
    pairs = tuple((place.first, place.second) for place in places)
    if places[0].is_link:
        return ExplainedFinding(kind, links=pairs)
    ranks = tuple(sorted({first for first, _ in pairs} - {ALL}))
    blocks = tuple(sorted({second for _, second in pairs} - {ALL}))
    is_open = any(ALL in pair for pair in pairs)
    return ExplainedFinding(kind, ranks, blocks, () if is_open else pairs)


_OF_FAMILY = {
    Family.OWN: FindingKind.SLOW,
    Family.GAP: FindingKind.IDLE_GAP,
    Family.TRAVEL: FindingKind.SLOW_TRANSFER,
    Family.LAUNCH: FindingKind.LATE_START,
}
_OF_WHAT = {
    What.ITEMS: FindingKind.SLOW_EVENTS,
    What.SURPLUS: FindingKind.UNEVEN_WORK,
    What.UNEVEN: FindingKind.UNEVEN_BLOCKS,
}


def sources_of(kinds: frozenset[FindingKind]) -> frozenset[Family | What]:
    """What findings of these kinds are made from."""
    families = {family for family, kind in _OF_FAMILY.items() if kind in kinds}
    return frozenset(families | {what for what, kind in _OF_WHAT.items() if kind in kinds})


def _kind(explanation: Explanation, part: Explained) -> FindingKind:
    hypothesis = part.hypothesis
    family = None if part.main_kind is None else explanation.basis.kinds[part.main_kind].family
    # Single gaps and launches that stand out are no events.
    if hypothesis.what is What.ITEMS and family in (Family.GAP, Family.LAUNCH):
        return _OF_FAMILY[family]
    if hypothesis.what in _OF_WHAT:
        return _OF_WHAT[hypothesis.what]
    is_everywhere = all(place.first == place.second == ALL for place in hypothesis.places)
    if is_everywhere and family is not Family.GAP:
        return FindingKind.SLOW_CALL
    return FindingKind.SLOW if family is None else _OF_FAMILY[family]


def _factor(explanation: Explanation, part: Explained) -> float:
    """What is found against what its likes take or have."""
    hypothesis, elements = part.hypothesis, explanation.basis.elements
    if hypothesis.what in (What.SURPLUS, What.UNEVEN):
        return float(np.exp(np.median(hypothesis.excess[hypothesis.calls])))
    is_main = np.ones(len(hypothesis.chosen), dtype=bool)
    if part.main_kind is not None:
        is_main = explanation.basis.first_kinds(hypothesis.chosen) == part.main_kind
    chosen = hypothesis.chosen[is_main]
    value = float(elements.value_ns[chosen].sum())
    # Likes that take next to no time take at most what the clocks cannot tell from none.
    basis = explanation.basis
    number, count = np.unique(elements.family[chosen], return_counts=True)
    least = sum(n * basis.least_ns(Family(f)) for f, n in zip(number, count, strict=True))
    rest = value - float(hypothesis.saved_ns[is_main].sum())
    return float(max(1.0, value / max(least, rest)))


def _region(explanation: Explanation, part: Explained) -> str | None:
    """The region that almost all of what is taken off belongs to."""
    basis, hypothesis = explanation.basis, part.hypothesis
    if part.main_kind is None or basis.kinds[part.main_kind].family is Family.LAUNCH:
        return None
    is_main = basis.first_kinds(hypothesis.chosen) == part.main_kind
    spans = basis.graph.spans
    region = spans.region[basis.elements.at[hypothesis.chosen[is_main]]]
    saved = np.bincount(region, weights=hypothesis.saved_ns[is_main])
    best = int(saved.argmax())
    return spans.region_names[best] if saved[best] >= _OF_ONE_REGION * saved.sum() else None


def _interval(gains: Floats, lengths: Floats) -> tuple[float, float]:
    """Calls drawn again a thousand times, with their own random numbers.

    What is drawn is the share: long calls gain more, and no call gains more than it takes.
    """
    count, gain, total = len(gains), float(gains.sum()), float(lengths.sum())
    if count < 2:
        return gain, gain
    drawn = np.random.default_rng(0).integers(0, count, (1000, count))
    shares = gains[drawn].sum(axis=1) / np.maximum(1.0, lengths[drawn].sum(axis=1))
    low, high = np.quantile(shares, [0.05, 0.95]) * total
    return min(gain, max(0.0, float(low))), max(gain, min(total, float(high)))


def _is_costly(hypothesis: Hypothesis, gains: Floats) -> Bools:
    """Which of the calls that have it would get shorter: all, unless others hide it there."""
    is_costly: Bools = hypothesis.calls & (gains >= LEAST_OF_CALL * gains.max(initial=0.0))
    return is_costly if is_costly.any() else hypothesis.calls


def _when(hypothesis: Hypothesis, is_costly: Bools, gains: Floats) -> tuple[When, int]:
    count = len(is_costly)
    if count == 1:
        return When.ONCE, 0
    if hypothesis.is_moving:
        return When.MOVING, 0
    if _is_growing(hypothesis.excess, gains):
        return When.GROWING, 0
    if is_costly.sum() >= 0.9 * count:
        return When.ALWAYS, 0
    period = _period_of(is_costly) or _period_of(hypothesis.calls)
    return (When.PERIODIC, period) if period else (When.SOMETIMES, 0)


def _is_growing(excess: Floats, gains: Floats) -> bool:
    third = max(1, len(gains) // 3)
    is_up = gains[-third:].mean() > 2 * max(0.0, gains[:third].mean())
    return bool(is_up and grows(excess) and grows(gains))


def _period_of(mask: Bools) -> int:
    """n where it is every n-th call from one of the first n on, three times and more; else 0."""
    for period in range(2, len(mask) // 3 + 1):
        phase = int(np.flatnonzero(mask)[0])
        if phase < period and (mask == (np.arange(len(mask)) % period == phase)).all():
            return period
    return 0
