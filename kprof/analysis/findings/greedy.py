"""Which candidates pay, one after the other.

The candidate with the largest gain is applied, and all others are measured again on what is left:
a symptom has no gain left once its cause is gone. Where several gain about as much, the one that
takes the least away is meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kprof.analysis.findings.candidates.candidate import (
    Basis,
    Candidate,
    Comparable,
    is_once,
    is_usual,
    union,
)
from kprof.analysis.findings.candidates.excess import ALL
from kprof.analysis.findings.candidates.grouping import joined, with_scattered
from kprof.analysis.findings.described import finding_of
from kprof.analysis.findings.finding import Finding, Kind
from kprof.analysis.findings.kinds import all_kinds
from kprof.analysis.findings.thresholds import (
    ABOUT_AS_MUCH,
    LEAST_GAIN,
    LEAST_GAIN_BY_DESIGN,
    LEAST_GAIN_ONCE,
    LEAST_GAIN_RARE,
    LEAST_GAIN_TOGETHER,
    MANY_MORE,
    MOST_BEYOND_CARRIED,
    MOST_FINDINGS,
    MOST_TOGETHER,
    MOST_TRIED_TOGETHER,
    MOSTLY_WITHIN,
    NEEDED_TOGETHER,
    OF_ONE_CLASS,
    ONE_CAUSE,
    TOGETHER,
)
from kprof.analysis.replay.elastic import replay_of
from kprof.analysis.replay.elements import Family, edit_of
from kprof.analysis.replay.replay import Edit
from kprof.analysis.replay.spans import Floats


def candidates_of(basis: Basis, left_out: frozenset[Kind] = frozenset()) -> list[Candidate]:
    """All candidates, each by itself against the run as it was; `left_out` is what is in doubt in
    this recording."""
    kinds = [kind for kind in all_kinds() if kind not in left_out]
    found: list[Candidate] = []
    for number in range(len(basis.classes)):
        chosen = np.flatnonzero(basis.elements.kind == number)
        value_ns = basis.elements.value_ns[chosen].copy()
        comparable = Comparable(basis, number, chosen, value_ns)
        for kind in kinds:
            found += kind.candidates(comparable)
    # What is usual would hide what is not: both shorten the same calls.
    unusual = [candidate for candidate in found if not is_usual(basis, candidate)]
    return [
        candidate
        for candidate in joined(basis, unusual)
        if candidate.saved_ns.sum() > 0 and not is_usual(basis, candidate)
    ]


def _is_part(one: Candidate, other: Candidate) -> bool:
    """Most of what one takes off are elements of the other, too."""
    shared = np.isin(one.chosen, other.chosen)
    return bool(one.saved_ns[shared].sum() >= MOSTLY_WITHIN * one.saved_ns.sum())


def _has_more_items(candidate: Candidate) -> bool:
    """Whether places have more items than comparable ones, and are not slow by themselves."""
    return candidate.counts_items and not candidate.is_alone


def _is_of_processors(other: Candidate, blocks: Candidate) -> bool:
    """Whether blocks are slow because they move over these SMs, or come to lie on fewer of them."""
    are_fewer = len(other.places) < len(blocks.places) and blocks.kind == other.kind
    return other.places[0].is_processor and (blocks.is_moving or are_fewer)


def _deals_out(candidate: Candidate) -> bool:
    """Whether it deals all items of a region out."""
    return candidate.counts_items and candidate.is_alone


def _is_rest_of(surplus: Candidate, other: Candidate) -> bool:
    """Whether it deals out what a surplus that gained about as much has left of a region: nobody
    can divide a tile."""
    is_same = bool(surplus.classes & other.classes)
    return is_same and _has_more_items(surplus) and _deals_out(other)


def _is_same(one: Candidate, other: Candidate) -> bool:
    """Whether both are about the same elements: blocks, and the SMs on which they always are."""
    fewer, more = sorted((len(one.chosen), len(other.chosen)))
    are_as_many = one.kind == other.kind and fewer >= ONE_CAUSE * more
    return are_as_many and bool(np.isin(one.chosen, other.chosen).mean() >= ONE_CAUSE)


def _has_many_more(candidate: Candidate) -> bool:
    """Whether ranks as a whole have so many more items that a reader of the counts would ask."""
    are_ranks = all(
        not place.is_link and place.first != ALL and place.second == ALL
        for place in candidate.places
    )
    if not _has_more_items(candidate) or not are_ranks:
        return False
    return bool(np.median(candidate.excess[candidate.calls]) >= np.log(MANY_MORE))


class Search:
    """The greedy search over candidates; `left` is the part of every element that is left."""

    def __init__(self, basis: Basis, candidates: list[Candidate]) -> None:
        self.basis = basis
        # Each with the numbers of those that it unites, which may hide one another.
        single: list[tuple[Candidate, tuple[int, ...]]] = [(one, ()) for one in candidates]
        scattered = with_scattered(basis, candidates)
        self.candidates = single + [one for one in scattered if not is_usual(basis, one[0])]
        self.replay = replay_of(basis.graph)
        self.left = np.ones(len(basis.elements))
        self.ends = self.replay.call_ends([Edit()])[0]
        # Whether something is left that gains enough, but only once.
        self.has_chance = False
        self.used: list[Candidate] = []
        # How many would gain more than the waits and the work that they are about.
        self.refused = 0
        lengths = (basis.graph.call_end - basis.graph.call_start).astype(float)
        self.total_ns = float(lengths.sum())

    def run(self) -> list[Finding]:
        """What pays, then what is by design and costs more than all of that."""
        by_design = [i for i, (one, _) in enumerate(self.candidates) if one.is_by_design]
        others = [i for i in range(len(self.candidates)) if i not in by_design]
        least_ns = LEAST_GAIN * self.total_ns
        found = self._run_among(others, least_ns)
        has_chance, explained_ns = self.has_chance, sum(finding.gain_ns for finding in found)
        found += self._run_among(by_design, max(LEAST_GAIN_BY_DESIGN * self.total_ns, explained_ns))
        self.has_chance = has_chance
        return found

    def _run_among(self, open_ones: list[int], least_ns: float) -> list[Finding]:
        """The best candidate, then the best one of what is left, and so on."""
        found: list[Finding] = []
        candidates = [candidate for candidate, _ in self.candidates]
        totals = np.zeros(len(candidates))
        while open_ones and len(found) < MOST_FINDINGS:
            gains = self._gains([candidates[i] for i in open_ones])
            totals[:] = 0.0
            totals[open_ones] = gains.sum(axis=1)
            if not found:
                alone = totals.copy()
            self._weigh(totals)
            if totals.max() < least_ns:
                single = [i for i in open_ones if self._can_hide(candidates[i])]
                together = self._only_together(single)
                found += self._findings_together([candidates[i] for i in together])
                break
            best = self._choose(candidates, totals)
            by_call = gains[open_ones.index(best)]
            if not self._carries(candidates[best], by_call):
                self.refused += 1
                open_ones.remove(best)
                continue
            found.append(self._finding(candidates[best], by_call, float(alone[best])))
            self._apply(candidates[best])
            self.used.append(candidates[best])
            open_ones = [
                i
                for i in open_ones
                if i != best
                and not _is_rest_of(candidates[best], candidates[i])
                and not _is_same(candidates[best], candidates[i])
            ]
        return found

    def _can_hide(self, candidate: Candidate) -> bool:
        """Whether it is one place, and not just once: several that took long in one call are chance
        as often as one that did."""
        is_often = candidate.calls.sum() > 1 or self.basis.num_calls == 1
        return len(candidate.places) == 1 and not candidate.is_alone and bool(is_often)

    def _only_together(self, numbers: list[int]) -> list[int]:
        """Two or three candidates that hide each other: none gains anything, all of them much."""
        candidates = [self.candidates[i][0] for i in numbers]
        large = sorted(range(len(numbers)), key=lambda i: -float(candidates[i].saved_ns.sum()))
        kept = large[:MOST_TRIED_TOGETHER]
        if len(kept) < 2:
            return []
        least_ns = LEAST_GAIN_TOGETHER * self.total_ns
        while True:
            tried = [kept, *([i for i in kept if i != gone] for gone in kept if len(kept) > 1)]
            unions = [union([candidates[i] for i in part], ()) for part in tried]
            gain, *without = self._gains(unions).sum(axis=1).tolist()
            if gain < least_ns or len(kept) < 2:
                return []
            needless = int(np.argmax(without))
            if without[needless] < NEEDED_TOGETHER * gain:
                return [numbers[i] for i in kept] if len(kept) <= MOST_TOGETHER else []
            kept = tried[1 + needless]

    def _findings_together(self, candidates: list[Candidate]) -> list[Finding]:
        """Each with an equal part of what they gain together: by itself, none gains anything."""
        if not candidates:
            return []
        everything = union(candidates, ())
        gains = self._gains([everything])[0]
        if not self._carries(everything, gains):
            self.refused += 1
            return []
        # The one that gains most by itself comes first, little as that is.
        candidates = sorted(candidates, key=lambda one: -float(self._gains([one]).sum()))
        alone = self._gains(candidates).sum(axis=1).tolist()
        together = len(candidates), float(gains.sum()) / self.total_ns
        found = []
        for i, candidate in enumerate(candidates):
            others = candidates[:i] + candidates[i + 1 :]
            finding = self._finding(candidate, gains / len(candidates), alone[i], others)
            found.append(replace(finding, together=together))
        self._apply(everything)
        self.used += candidates
        return found

    def below(self) -> Finding | None:
        """Of the ranks that have many more items than the others, and that are not found, the one
        that gains most on top of what is found, where that is too little for a finding."""
        named = {place.first for candidate in self.used for place in candidate.places}
        open_ones = [
            candidate
            for candidate, _ in self.candidates
            if _has_many_more(candidate) and not named & {place.first for place in candidate.places}
        ]
        if not open_ones:
            return None
        gains = self._gains(open_ones)
        best = int(gains.sum(axis=1).argmax())
        gain = float(gains[best].sum())
        if gain >= LEAST_GAIN * self.total_ns:
            return None
        return self._finding(open_ones[best], gains[best], gain)

    def _finding(
        self,
        candidate: Candidate,
        gains_ns: Floats,
        alone_ns: float,
        others: Sequence[Candidate] = (),
    ) -> Finding:
        """The finding of a candidate, whose gain is its part of that with `others` it needs."""
        main = self._main_class(candidate, float(gains_ns.sum()) * (1 + len(others)), others)
        return finding_of(self.basis, candidate, gains_ns, main, alone_ns)

    def _carries(self, candidate: Candidate, gains_ns: Floats) -> bool:
        """Whether it gains no more than its work, and its waits as recorded or as they are left."""
        elements, graph, chosen = self.basis.elements, self.basis.graph, candidate.chosen
        carried_ns = candidate.saved_ns * self.left[chosen]
        is_wait = elements.family[chosen] == Family.TRAVEL
        if is_wait.any():
            at, spans = elements.at[chosen[is_wait]], graph.spans
            ends = self.replay.span_ends(Edit())
            before = graph.before[at]
            begins = np.where(before >= 0, ends[before] + graph.gap_ns[at], spans.start[at])
            waited = np.maximum(ends[at] - begins, spans.end[at] - spans.start[at])
            carried_ns[is_wait] = np.minimum(carried_ns[is_wait], waited)
        return bool(gains_ns.sum() <= MOST_BEYOND_CARRIED * carried_ns.sum())

    def _weigh(self, totals: Floats) -> None:
        """Set to 0 what is no explanation of its own, in place."""
        self.has_chance = False
        for i, (candidate, _) in enumerate(self.candidates):
            # What took long once is chance more often than what comes again.
            least = LEAST_GAIN_RARE if candidate.is_rare else LEAST_GAIN_ONCE
            is_chance = candidate.is_rare or is_once(self.basis, candidate)
            if is_chance and totals[i] < least * self.total_ns:
                self.has_chance |= bool(totals[i] >= LEAST_GAIN * self.total_ns)
                totals[i] = 0.0
        for i, (_, parts) in enumerate(self.candidates):
            if parts:
                alone = np.maximum(totals[list(parts)], 0.0).sum()
                totals[i] *= totals[i] > TOGETHER * alone

    def _edit(self, candidate: Candidate) -> Edit:
        """What a candidate takes off on top of what is taken already."""
        more = candidate.saved_ns * self.left[candidate.chosen]
        return edit_of(self.basis.elements, candidate.chosen, more)

    def _gains(self, candidates: list[Candidate]) -> Floats:
        return self.ends[None, :] - self.replay.call_ends([self._edit(h) for h in candidates])

    def _choose(self, candidates: list[Candidate], totals: Floats) -> int:
        """The best one; of those that gain about as much the one that takes the least away, unless
        the best one still pays without that: then both are causes, and the best one comes first.

        Where a place has more items and takes longer for each, the items are meant: they share a
        link. Where dealing all items out gains about as much as one place's surplus, it is that.
        """
        best = int(totals.argmax())
        close = [best]
        for other in np.flatnonzero(totals >= ABOUT_AS_MUCH * totals[best]).tolist():
            if other != best and _is_part(candidates[other], candidates[best]):
                close.append(other)
        least = min(close, key=lambda i: float(candidates[i].saved_ns.sum()))
        if least != best:
            first, then = candidates[least], candidates[best]
            both = [first, union([first, then], then.places)]
            alone_ns, both_ns = self._gains(both).sum(axis=1).tolist()
            if both_ns - alone_ns >= LEAST_GAIN * self.total_ns:
                least = best
        for other in np.flatnonzero(totals >= ABOUT_AS_MUCH * totals[least]).tolist():
            if _is_of_processors(candidates[other], candidates[least]):
                return int(other)
            is_there = (
                _deals_out(candidates[least])
                or candidates[other].places == candidates[least].places
            )
            if _has_more_items(candidates[other]) and is_there:
                return int(other)
        return least

    def _main_class(
        self, candidate: Candidate, gain: float, others: Sequence[Candidate]
    ) -> int | None:
        """The class that gains almost all of it, with the others that it needs but without its
        other classes."""
        # Gaps before a region are one class here, whatever comes before them.
        firsts = self.basis.firsts_of_classes
        classes = sorted({int(firsts[number]) for number in candidate.classes})
        if len(classes) == 1:
            return classes[0]
        number_of = self.basis.first_classes(candidate.chosen)
        parts = [
            replace(
                candidate,
                chosen=candidate.chosen[number_of == number],
                saved_ns=candidate.saved_ns[number_of == number],
            )
            for number in classes
        ]
        gains = self._gains([union([part, *others], ()) for part in parts]).sum(axis=1)
        best = int(gains.argmax())
        return classes[best] if gains[best] >= OF_ONE_CLASS * gain else None

    def _apply(self, candidate: Candidate) -> None:
        self.replay.keep(self._edit(candidate))
        value = np.maximum(self.basis.elements.value_ns[candidate.chosen], 1e-9)
        self.left[candidate.chosen] *= np.maximum(0.0, 1 - candidate.saved_ns / value)
        self.ends = self.replay.call_ends([Edit()])[0]
