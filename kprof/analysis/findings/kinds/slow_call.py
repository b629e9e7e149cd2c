"""All places take longer in some calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kprof.analysis.findings import words
from kprof.analysis.findings.candidates.candidate import Candidate
from kprof.analysis.findings.candidates.excess import ALL
from kprof.analysis.findings.finding import Finding, Kind, RestsOn
from kprof.analysis.replay.elements import Family


class SlowCall(Kind):
    """All places take longer in some calls. The candidates are those of single places."""

    name = "slow_call"
    finds = "all places take longer in some calls"
    replays = "those calls are like the others"
    figures = ("launches", "gantt")
    rests_on = frozenset({RestsOn.TIMES})
    # Before those of single places, which cover all places, too.
    order = 1
    is_work = True
    is_of_calls = True

    def covers(self, candidate: Candidate, family: Family | None) -> bool:
        """What all ranks and blocks share, unless it is a gap or a late launch."""
        is_everywhere = all(place.first == place.second == ALL for place in candidate.places)
        return is_everywhere and family not in (Family.GAP, Family.LAUNCH)

    def placed(self, finding: Finding, ranks: Sequence[int]) -> Finding:
        """All places of one rank are that rank."""
        return replace(finding, ranks=tuple(ranks)) if len(ranks) == 1 else finding

    def fact(self, finding: Finding) -> str:
        """All ranks run expert 2.5x slower than usual in 3 of 12 calls"""
        is_one = len(finding.ranks) == 1
        who = f"Rank {finding.ranks[0]}" if is_one else "All ranks"
        return f"{who} {words.slower(finding, 'than usual', is_one=is_one)}{words.when(finding)}"

    def advice(self, finding: Finding) -> str:
        return (
            "look for what else happens around those calls: allocations, other work, other inputs"
        )


KIND = SlowCall()
