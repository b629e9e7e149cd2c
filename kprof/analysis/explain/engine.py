"""The explanation of a run: which changes would make it shorter, one after the other.

The hypothesis with the largest gain is applied, and all others are measured again on what is left:
a symptom has no gain left once its cause is gone. Where several gain about as much, the one that
takes the least away is meant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kprof.analysis.explain.excess import ALL
from kprof.analysis.explain.hypotheses import hypotheses_of
from kprof.analysis.explain.hypotheses.grouping import with_scattered
from kprof.analysis.explain.hypotheses.model import (
    Basis,
    Hypothesis,
    What,
    basis_of,
    is_once,
    is_usual,
    union,
)
from kprof.analysis.explain.limits import Limit, limits_of
from kprof.analysis.replay.elements import Family, edit_of
from kprof.analysis.replay.graph import Graph
from kprof.analysis.replay.replay import Edit, Replay
from kprof.analysis.replay.spans import Floats

# What gains less of the run is not worth a sentence.
LEAST_GAIN: Final = 0.03
LEAST_GAIN_ONCE: Final = 0.06
_ABOUT_AS_MUCH: Final = 0.85
_MOST_FINDINGS: Final = 8
# Places that have nothing but their excess in common are one finding when together they gain so
# many times as much.
_TOGETHER: Final = 1.25
# The rest of a place's classes belong to a finding when this much of its gain is not one class's.
_OF_ONE_CLASS: Final = 0.85
# A rank with so many times as many items as the others is named even where that costs little.
_MANY_MORE: Final = 1.5


@dataclass(frozen=True)
class Explained:
    """A hypothesis that pays: `gains_ns` by call, on top of those before it. `main_kind` is the
    class that gains almost all of it by itself, or None. `alone_ns` is what all calls would gain
    without the hypotheses before it."""

    hypothesis: Hypothesis
    gains_ns: Floats
    main_kind: int | None
    alone_ns: float


@dataclass(frozen=True)
class Explanation:
    """What pays, in order, what limits the rest, and the lengths of calls.

    `basis` has the classes and elements, `below` the rank that has many more items than the others
    without costing enough, if there is one. Nothing that is left gains `least_share` of all calls.
    """

    basis: Basis
    lengths_ns: Floats
    parts: tuple[Explained, ...]
    limits: tuple[Limit, ...]
    below: Explained | None = None
    least_share: float = LEAST_GAIN


def explain(
    graph: Graph, bound_ns: float = 0.0, left_out: frozenset[Family | What] = frozenset()
) -> Explanation:
    """Explain the calls of a graph; `left_out` as in `hypotheses_of`."""
    basis = basis_of(graph)
    # What is usual would hide what is not: both shorten the same calls.
    hypotheses = [h for h in hypotheses_of(basis, bound_ns, left_out) if not is_usual(basis, h)]
    explanation, left = _explained(basis, hypotheses)
    return replace(explanation, limits=limits_of(basis, left, LEAST_GAIN))


def explain_by(basis: Basis, hypotheses: list[Hypothesis]) -> Explanation:
    """Explain calls by these hypotheses and no others, and without limits."""
    return _explained(basis, hypotheses)[0]


def _explained(basis: Basis, hypotheses: list[Hypothesis]) -> tuple[Explanation, Floats]:
    """What pays, and the part of every element that is left."""
    lengths = (basis.graph.call_end - basis.graph.call_start).astype(float)
    search = _Search(basis, hypotheses)
    parts = search.run(float(lengths.sum()))
    least_share = LEAST_GAIN_ONCE if search.has_chance else LEAST_GAIN
    below = search.below(parts, LEAST_GAIN * float(lengths.sum()))
    return Explanation(basis, lengths, tuple(parts), (), below, least_share), search.left


def _is_part(one: Hypothesis, other: Hypothesis) -> bool:
    """Most of what one takes off are elements of the other, too."""
    shared = np.isin(one.chosen, other.chosen)
    return bool(one.saved_ns[shared].sum() >= 0.5 * one.saved_ns.sum())


def _has_many_more(hypothesis: Hypothesis) -> bool:
    """Whether ranks as a whole have so many more items that a reader of the counts would ask."""
    are_ranks = all(
        not place.is_link and place.first != ALL and place.second == ALL
        for place in hypothesis.places
    )
    if hypothesis.what is not What.SURPLUS or not are_ranks:
        return False
    return bool(np.median(hypothesis.excess[hypothesis.calls]) >= np.log(_MANY_MORE))


class _Search:
    def __init__(self, basis: Basis, hypotheses: list[Hypothesis]) -> None:
        self.basis = basis
        # Each with the numbers of those that it unites, which may hide one another.
        single: list[tuple[Hypothesis, tuple[int, ...]]] = [(one, ()) for one in hypotheses]
        self.candidates = single + with_scattered(basis, hypotheses)
        self.replay = Replay(basis.graph)
        # The part of every element that is left.
        self.left = np.ones(len(basis.elements))
        self.ends = self.replay.call_ends([Edit()])[0]
        # Whether something is left that gains enough, but only once.
        self.has_chance = False

    def run(self, total_ns: float) -> list[Explained]:
        """Greedy: the best one, then the best one of what is left."""
        found: list[Explained] = []
        open_ones = list(range(len(self.candidates)))
        hypotheses = [hypothesis for hypothesis, _ in self.candidates]
        totals = np.zeros(len(hypotheses))
        while open_ones and len(found) < _MOST_FINDINGS:
            gains = self._gains([hypotheses[i] for i in open_ones])
            totals[:] = 0.0
            totals[open_ones] = gains.sum(axis=1)
            if not found:
                alone = totals.copy()
            self._weigh(totals, total_ns)
            if totals.max() < LEAST_GAIN * total_ns:
                break
            best = self._choose(hypotheses, totals, LEAST_GAIN * total_ns)
            main = self._main_kind(hypotheses[best], float(totals[best]))
            by_call = gains[open_ones.index(best)]
            found.append(Explained(hypotheses[best], by_call, main, float(alone[best])))
            self._apply(hypotheses[best])
            open_ones.remove(best)
        return found

    def below(self, found: list[Explained], least_ns: float) -> Explained | None:
        """Of the ranks that have many more items than the others, and that are not found, the one
        that gains most on top of what is found, where that is less than `least_ns`."""
        named = {place.first for part in found for place in part.hypothesis.places}
        open_ones = [
            hypothesis
            for hypothesis, _ in self.candidates
            if _has_many_more(hypothesis)
            and not named & {place.first for place in hypothesis.places}
        ]
        if not open_ones:
            return None
        gains = self._gains(open_ones)
        best = int(gains.sum(axis=1).argmax())
        gain = float(gains[best].sum())
        if gain >= least_ns:
            return None
        return Explained(open_ones[best], gains[best], self._main_kind(open_ones[best], gain), gain)

    def _weigh(self, totals: Floats, total_ns: float) -> None:
        """Set to 0 what is no explanation of its own, in place."""
        self.has_chance = False
        for i, (hypothesis, _) in enumerate(self.candidates):
            # What took long once is chance more often than what comes again.
            if is_once(self.basis, hypothesis) and totals[i] < LEAST_GAIN_ONCE * total_ns:
                self.has_chance |= bool(totals[i] >= LEAST_GAIN * total_ns)
                totals[i] = 0.0
        for i, (_, parts) in enumerate(self.candidates):
            if parts:
                alone = np.maximum(totals[list(parts)], 0.0).sum()
                totals[i] *= totals[i] > _TOGETHER * alone

    def _edit(self, hypothesis: Hypothesis) -> Edit:
        """What a hypothesis takes off on top of what is taken already."""
        more = hypothesis.saved_ns * self.left[hypothesis.chosen]
        return edit_of(self.basis.elements, hypothesis.chosen, more)

    def _gains(self, hypotheses: list[Hypothesis]) -> Floats:
        gains: Floats = self.ends[None, :] - self.replay.call_ends(
            [self._edit(h) for h in hypotheses]
        )
        return gains

    def _gain_after(self, first: Hypothesis, then: Hypothesis) -> float:
        """What a hypothesis gains on top of another."""
        both = [first, union([first, then], then.places)]
        gains = self._gains(both).sum(axis=1)
        return float(gains[1] - gains[0])

    def _choose(self, hypotheses: list[Hypothesis], totals: Floats, least_ns: float) -> int:
        """The best one; of those that gain about as much the one that takes the least away, unless
        the best one still pays without that: then both are causes, and the best one comes first.

        Where a place has more items and takes longer for each, the items are meant: they share a
        link.
        """
        best = int(totals.argmax())
        candidates = [best]
        for other in np.flatnonzero(totals >= _ABOUT_AS_MUCH * totals[best]).tolist():
            if other != best and _is_part(hypotheses[other], hypotheses[best]):
                candidates.append(other)
        least = min(candidates, key=lambda i: float(hypotheses[i].saved_ns.sum()))
        if least != best and self._gain_after(hypotheses[least], hypotheses[best]) >= least_ns:
            least = best
        for other in np.flatnonzero(totals >= _ABOUT_AS_MUCH * totals[least]).tolist():
            has_more = hypotheses[other].what is What.SURPLUS
            if has_more and hypotheses[other].places == hypotheses[least].places:
                return int(other)
        return least

    def _main_kind(self, hypothesis: Hypothesis, gain: float) -> int | None:
        """The class that gains almost all of it by itself."""
        # Gaps before a region are one class here, whatever comes before them.
        firsts = self.basis.firsts_of_kinds
        kinds = sorted({int(firsts[number]) for number in hypothesis.kinds})
        if len(kinds) == 1:
            return kinds[0]
        kind = self.basis.first_kinds(hypothesis.chosen)
        parts = [
            replace(
                hypothesis,
                chosen=hypothesis.chosen[kind == number],
                saved_ns=hypothesis.saved_ns[kind == number],
            )
            for number in kinds
        ]
        gains = self._gains(parts).sum(axis=1)
        best = int(gains.argmax())
        return kinds[best] if gains[best] >= _OF_ONE_CLASS * gain else None

    def _apply(self, hypothesis: Hypothesis) -> None:
        self.replay.keep(self._edit(hypothesis))
        value = np.maximum(self.basis.elements.value_ns[hypothesis.chosen], 1e-9)
        self.left[hypothesis.chosen] *= np.maximum(0.0, 1 - hypothesis.saved_ns / value)
        self.ends = self.replay.call_ends([Edit()])[0]
