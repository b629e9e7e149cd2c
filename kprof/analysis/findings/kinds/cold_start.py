"""The first event of a region on every track takes longer than the later ones."""

from __future__ import annotations

import numpy as np

from kprof.analysis.findings import words
from kprof.analysis.findings.candidates.candidate import Candidate, Comparable, Place
from kprof.analysis.findings.candidates.excess import ALL
from kprof.analysis.findings.finding import Finding, Kind, RestsOn
from kprof.analysis.findings.thresholds import (
    COLD_RATIO,
    LATER_THAN_COLD,
    LEAST_ELEMENTS,
    NEARLY_ALL_COLD,
)
from kprof.analysis.replay.columns import grouped_median
from kprof.analysis.replay.elements import Family
from kprof.analysis.wording import ratio


class ColdStart(Kind):
    name = "cold_start"
    finds = "the first event of a region on every track takes longer than the later ones"
    replays = "it takes as long as the later ones"
    figures = ("gantt",)
    rests_on = frozenset({RestsOn.TIMES})
    # Before single slow events: these are all first ones.
    order = 0

    def candidates(self, comparable: Comparable) -> list[Candidate]:
        """The first events of the calls where nearly all of them take much longer than nearly all
        later ones."""
        if comparable.family is not Family.OWN:
            return []
        elements, chosen, value = comparable.basis.elements, comparable.chosen, comparable.value_ns
        call, is_first = elements.call[chosen], elements.turn[chosen] == 0
        if is_first.all():
            return []
        usual_ns = max(float(np.median(value[~is_first])), comparable.least_ns)
        num_calls = comparable.basis.num_calls
        of_call_ns = grouped_median(call[is_first], value[is_first], num_calls)
        is_here = (of_call_ns >= COLD_RATIO * usual_ns)[call]
        is_cold, is_later = is_here & is_first, is_here & ~is_first
        # Enough tracks, and enough later events on each to compare with.
        num_cold = int(is_cold.sum())
        if num_cold < LEAST_ELEMENTS or is_later.sum() < LATER_THAN_COLD * num_cold:
            return []
        is_slow = value > np.sqrt(COLD_RATIO) * usual_ns
        if (
            is_slow[is_cold].mean() < NEARLY_ALL_COLD
            or is_slow[is_later].mean() > 1 - NEARLY_ALL_COLD
        ):
            return []
        cold_ns = float(np.median(value[is_cold]))
        saved_ns = value[is_cold] * (1 - usual_ns / cold_ns)
        value[is_cold] -= saved_ns
        excess = np.zeros(num_calls)
        excess[call[is_cold]] = np.log(cold_ns / usual_ns)
        what = (Place(ALL, ALL),), comparable.classes, excess, chosen[is_cold], saved_ns
        return [Candidate(self.name, *what, position="first", is_alone=True)]

    def fact(self, finding: Finding) -> str:
        """The first expert on every track is 4.0x slower than later ones"""
        slower = f"{ratio(finding.factor)} slower than later ones"
        region = finding.region or "event of a region"
        return f"The first {region} on every track is {slower}{words.when(finding)}"

    def advice(self, finding: Finding) -> str:
        if finding.is_on_gpu:
            return "begin its first load earlier, or prefetch its code and data before the loop"
        return "look at what the first one meets: page faults, cold caches, allocations"


KIND = ColdStart()
