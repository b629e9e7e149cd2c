"""A place does nothing that is recorded."""

from __future__ import annotations

from kprof.analysis.findings import words
from kprof.analysis.findings.candidates.candidate import Candidate, Comparable
from kprof.analysis.findings.candidates.outliers import outliers
from kprof.analysis.findings.candidates.slow_places import slow_places
from kprof.analysis.findings.facts import GrownRegion
from kprof.analysis.findings.finding import Finding, Kind, RestsOn
from kprof.analysis.replay.elements import Family


class IdleGap(Kind):
    name = "idle_gap"
    finds = "a place does nothing that is recorded"
    replays = "its gaps are as long as at comparable places"
    covered = (Family.GAP,)
    figures = ("gantt", "critical-path")
    # Dropped events leave gaps, and so do waits that were not recorded.
    rests_on = frozenset({RestsOn.TIMES, RestsOn.ALL_EVENTS, RestsOn.WAITS})

    def candidates(self, comparable: Comparable) -> list[Candidate]:
        """Single gaps that stand out, and places with long ones."""
        if comparable.family is not Family.GAP:
            return []
        return [*outliers(comparable, self.name), *slow_places(comparable)]

    def fact(self, finding: Finding) -> str:
        """Rank 3 has a gap without events before expert"""
        has = "has a gap" if words.is_singular(finding) else "have gaps"
        before = f" before {finding.region}" if finding.region else ""
        return f"{words.place(finding)} {has} without events{before}{words.when(finding)}"

    def advice(self, finding: Finding) -> str:
        return "put a region around what happens there, or move it behind the sends"

    def growth(self, finding: Finding, measured: GrownRegion | None, is_gone: bool) -> str:
        """Rank 3 has longer gaps ahead of expert than before"""
        has = "had" if is_gone else "has" if words.is_singular(finding) else "have"
        ahead = f" ahead of {finding.region}" if finding.region else ""
        than = "before" if is_gone else "than before"
        return f"{words.place(finding)} {has} longer gaps{ahead} {than}"


KIND = IdleGap()
