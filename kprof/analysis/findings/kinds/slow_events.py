"""Some events of a region take much longer than the others, all over the run or on one rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kprof.analysis.findings import words
from kprof.analysis.findings.candidates.candidate import Candidate, Comparable
from kprof.analysis.findings.candidates.outliers import outliers
from kprof.analysis.findings.finding import Finding, Kind, RestsOn
from kprof.analysis.findings.thresholds import MOST_OF_SLOW_EVENTS
from kprof.analysis.replay.elements import Family
from kprof.analysis.summary import CLOSED_SPANS, Summary
from kprof.analysis.wording import counted, members, ratio

_MOST_NAMED: Final = 3


@dataclass(frozen=True)
class Particulars:
    """Where the slow events are: how many in all, the (rank, block) with most of them, the rank
    with most of them, and in how many blocks of which ranks they are."""

    total: int
    most: tuple[int, int, int]
    most_of_rank: tuple[int, int]
    num_blocks: int
    ranks: tuple[int, ...]
    is_of_many_ranks: bool


class SlowEvents(Kind):
    name = "slow_events"
    finds = "some events of a region take much longer, all over the run"
    replays = "they take what the others take"
    figures = ("gantt",)
    figures_of_waits = ("wait-distribution",)
    rests_on = frozenset({RestsOn.TIMES})
    # What they have too much of is no place's.
    order = 1

    def candidates(self, comparable: Comparable) -> list[Candidate]:
        """Events and transfers that stand out by themselves."""
        is_event = comparable.family in (Family.OWN, Family.TRAVEL)
        return outliers(comparable, self.name, is_periodic=True) if is_event else []

    def looked_up(self, summary: Summary, finding: Finding) -> Finding:
        """Which ranks and blocks have the slow events."""
        if finding.region is None:
            return finding
        table = summary.frame(
            f"""WITH its AS (SELECT rank, block, duration_ns AS ns FROM events
                    WHERE {CLOSED_SPANS} AND region = ?),
                usual AS (SELECT median(ns) AS ns FROM its)
                SELECT rank, block, count(*) AS events FROM its
                WHERE ns > (SELECT ns FROM usual) * {(1 + finding.factor) / 2:.6f}
                GROUP BY rank, block ORDER BY events DESC, rank, block""",
            [finding.region],
        )
        if table.empty:
            return finding
        most = tuple(int(table[name].iloc[0]) for name in ("rank", "block", "events"))
        by_rank = table.groupby("rank")["events"].sum().sort_values(ascending=False, kind="stable")
        ranks = [int(rank) for rank in by_rank.index.tolist()]
        facts = Particulars(
            total=int(table["events"].sum()),
            most=(most[0], most[1], most[2]),
            most_of_rank=(ranks[0], int(by_rank.iloc[0])),
            num_blocks=len(table),
            ranks=tuple(sorted(ranks)),
            is_of_many_ranks=len(summary.trace.ranks) > 2,
        )
        return replace(finding, particulars=facts)

    def fact(self, finding: Finding) -> str:
        """One in 16 events of expert is 4.0x slower than the rest"""
        if finding.position:
            what = f"The {finding.position} {finding.region or 'event of a region'} on every track"
            than = "than the others"
            return f"{what} is {ratio(finding.factor)} slower {than}{words.when(finding)}"
        events, is_ = "Some events", "are"
        if finding.period:
            events, is_ = f"One in {finding.period} events", "is"
        region = finding.region or "one region"
        if len(finding.ranks) == 1:
            region += f" on rank {finding.ranks[0]}"
        slower = f"{ratio(finding.factor)} slower than the rest"
        return f"{events} of {region} {is_} {slower}{words.when(finding)}"

    def advice(self, finding: Finding) -> str:
        if finding.position:
            return f"look at what only the {finding.position} one does: other data, a wait, a flush"
        return "look at what is different about those items: size, address, cache misses"

    def details(self, finding: Finding) -> tuple[str, ...]:
        """The slow events are spread over 132 blocks of ranks 0-3"""
        facts = finding.particulars
        if not isinstance(facts, Particulars):
            return ()
        least = MOST_OF_SLOW_EVENTS * facts.total
        (rank, block, most), (of_rank, on_rank) = facts.most, facts.most_of_rank
        if most >= least:
            return (f"{most:,} of {facts.total:,} slow events are in block {block} of rank {rank}",)
        if on_rank >= least and facts.is_of_many_ranks:
            return (f"{on_rank:,} of {facts.total:,} slow events are on rank {of_rank}",)
        blocks = counted(facts.num_blocks, "block", "blocks")
        ranks = members("rank", facts.ranks, _MOST_NAMED)
        return (f"The {facts.total:,} slow events are spread over {blocks} of {ranks}",)


KIND = SlowEvents()
