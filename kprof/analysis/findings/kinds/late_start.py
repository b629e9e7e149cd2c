"""A rank launches later than the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kprof.analysis.calls import launch_starts
from kprof.analysis.findings import words
from kprof.analysis.findings.candidates.candidate import Candidate, Comparable
from kprof.analysis.findings.candidates.outliers import outliers
from kprof.analysis.findings.candidates.slow_places import slow_places
from kprof.analysis.findings.facts import GrownRegion, Where
from kprof.analysis.findings.finding import Finding, Kind, RestsOn
from kprof.analysis.findings.places import LAUNCHES
from kprof.analysis.replay.elements import Family
from kprof.analysis.summary import Summary

_MOST_NAMED: Final = 3


@dataclass(frozen=True)
class Particulars:
    """(rank, number of calls in which it was the last to start), the most frequent first."""

    last: tuple[tuple[int, int], ...]


class LateStart(Kind):
    name = "late_start"
    finds = "a rank launches later than the others"
    replays = "it starts with them"
    covered = (Family.LAUNCH,)
    figures = ("launches", "critical-path")
    rests_on = frozenset({RestsOn.TIMES, RestsOn.COMMON_CLOCK})

    def candidates(self, comparable: Comparable) -> list[Candidate]:
        """Launches that are late now and then, and ranks that launch late."""
        if comparable.family is not Family.LAUNCH:
            return []
        return [*outliers(comparable, self.name), *slow_places(comparable)]

    def placed(self, finding: Finding, ranks: Sequence[int]) -> Finding:
        """All places of one rank are that rank."""
        return replace(finding, ranks=tuple(ranks)) if len(ranks) == 1 else finding

    def among(self, finding: Finding, recorded: frozenset[int]) -> Finding:
        """As it is: ranks that start late in turn are named, also where it is all of them."""
        return finding

    def looked_up(self, summary: Summary, finding: Finding) -> Finding:
        """In how many of its calls each of several ranks was the last to start."""
        if len(finding.ranks) < 2:
            return finding
        starts = launch_starts(summary)
        is_its = starts["ordinal"].isin(finding.calls) & starts["rank"].isin(finding.ranks)
        first = starts[is_its].groupby(["ordinal", "rank"])["first_ns"].min().reset_index()
        last = first.sort_values("first_ns", kind="stable").groupby("ordinal")["rank"].last()
        counts = Counter(int(rank) for rank in last.tolist())
        return replace(finding, particulars=Particulars(tuple(counts.most_common())))

    def shown_at(self, summary: Summary, finding: Finding, ordinal: int) -> Where:
        """From the first rank's start to that of the rank that is last; their launches."""
        starts = launch_starts(summary)
        of_call = starts[starts["ordinal"] == ordinal].groupby("rank")["first_ns"].min()
        first_ns = {int(r): int(first) for r, first in zip(of_call.index, of_call, strict=True)}
        late = [rank for rank in first_ns if rank in finding.ranks] or list(first_ns)
        if not late:
            return None, ()
        last, first = max(late, key=first_ns.__getitem__), min(first_ns, key=first_ns.__getitem__)
        window = first_ns[first], max(first_ns[last], first_ns[first] + 1)
        return window, tuple((rank, LAUNCHES) for rank in dict.fromkeys((last, first)))

    def fact(self, finding: Finding) -> str:
        """Rank 3 starts late; Rank 3 arrives 233 us late at AllReduce RING LL; Rank 0 starts late
        in 7 of 20 calls, rank 1 in 5"""
        last = finding.particulars.last if isinstance(finding.particulars, Particulars) else ()
        if 1 < len(last) <= _MOST_NAMED:
            (rank, count), *others = last
            parts = [f"Rank {rank} starts late in {count} of {len(finding.gains_ns)} calls"]
            return ", ".join([*parts, *(f"rank {r} in {n}" for r, n in others)])
        starts = "starts late" if words.is_singular(finding) else "start late"
        if finding.arrival is not None:
            starts = words.arrives(finding, finding.arrival)
        return f"{words.place(finding)} {starts}{words.when(finding)}"

    def consequence(self, finding: Finding) -> str:
        return ""

    def advice(self, finding: Finding) -> str:
        there = words.lowered(words.place(finding)) if finding.ranks else "a rank"
        kernel = finding.arrival.kernel if finding.arrival is not None else "the kernel"
        return f"look at what the host does before it launches {kernel} on {there}"

    def growth(self, finding: Finding, measured: GrownRegion | None, is_gone: bool) -> str:
        """Rank 3 starts later than before"""
        starts = "started" if is_gone else "starts" if words.is_singular(finding) else "start"
        return f"{words.place(finding)} {starts} later {'before' if is_gone else 'than before'}"


KIND = LateStart()
