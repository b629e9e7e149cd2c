"""A rank or a block takes longer for the same work."""

from __future__ import annotations

from dataclasses import replace

from kprof.analysis.findings import words
from kprof.analysis.findings.candidates.candidate import Candidate, Comparable
from kprof.analysis.findings.candidates.slow_places import slow_places, slow_processors
from kprof.analysis.findings.finding import Finding, Kind, RestsOn
from kprof.analysis.findings.kinds import slow_call
from kprof.analysis.findings.when import When
from kprof.analysis.replay.elements import Family


class Slow(Kind):
    name = "slow"
    finds = "a rank or a block takes longer for the same work"
    replays = "it takes as long as comparable places"
    covered = (Family.OWN, None)
    figures = ("blocks-work", "ranks")
    rests_on = frozenset({RestsOn.TIMES})
    order = 2
    is_work = True

    def candidates(self, comparable: Comparable) -> list[Candidate]:
        """Ranks, blocks and SMs that take longer for a region."""
        if comparable.family is not Family.OWN:
            return []
        return [*slow_places(comparable), *slow_processors(comparable)]

    def among(self, finding: Finding, recorded: frozenset[int]) -> Finding:
        """Of one rank, its calls are compared, and not the rank."""
        if len(recorded) == 1 and not finding.blocks and not finding.processors:
            return replace(finding, kind=slow_call.KIND)
        return super().among(finding, recorded)

    def fact(self, finding: Finding) -> str:
        """Block 3 of rank 2 runs expert 4.8x slower than the rest"""
        if finding.when is When.MOVING:
            slower = words.slower(finding, "than the rest", is_one=True)
            return f"In {words.of_calls(finding)} one block {slower}, and which one changes"
        than = "than the rest" if finding.ranks or finding.blocks else "than usual"
        return f"{words.place(finding)} {words.slower(finding, than)}{words.when(finding)}"

    def advice(self, finding: Finding) -> str:
        if finding.processors:
            return "look at the SM: what else runs there, and whether it is slow in other kernels"
        if finding.blocks:
            return "compare what the block works on, and where it runs, with its neighbours"
        if finding.region is not None:
            return (
                f"compare the data and the code path of {finding.region} there with the other ranks"
            )
        if finding.is_on_gpu:
            return "compare clocks, power and links of the device with those of the other ranks"
        return "compare what else runs on its cores with those of the other ranks"


KIND = Slow()
