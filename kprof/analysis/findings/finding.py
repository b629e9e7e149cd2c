"""Findings: facts about one thing that pays, and their kinds, which put them into words.

A finding holds facts and no text. Its kind (`kinds/`, one file each) makes the sentence and the
advice from these facts when somebody asks for them, and nothing reads them but people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar

from kprof.analysis.findings import words
from kprof.analysis.findings.candidates.candidate import Candidate, Comparable
from kprof.analysis.findings.facts import Arrival, Caused, Measured, Where
from kprof.analysis.findings.when import When
from kprof.analysis.replay.elements import Family
from kprof.analysis.summary import Summary
from kprof.capture.verified import Verified


class RestsOn(str, Enum):
    """What a recording has to get right for a kind of finding to hold.

    A doubt takes out every kind that rests on what it doubts.
    """

    TIMES = "times"  # durations are the kernel's, not the scheduler's
    COMMON_CLOCK = "common_clock"  # times of two ranks can be compared
    ALL_EVENTS = "all_events"  # no event was dropped
    ALL_BLOCKS = "all_blocks"  # all blocks of a launch are there
    WAITS = "waits"  # waiting was recorded as waiting


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that pays. All that is known of it are these fields; its kind makes the words.

    Where: `ranks` and `blocks` are empty where all of them are meant; `places` are the (rank,
    block) pairs of single blocks; `links` are (source, destination), -1 for every one; `region`
    where it is one; `processors` are SMs (CUs) of `ranks`; `position` is "first" or "last" where it
    is about these events of every track. `hosts` are those whose ranks all are meant, `rail` is the
    n of the n-th ranks of every host, `host_links` are the pairs of hosts that several links join.

    When: `calls` are the ordinals of the calls that have it, `costly_calls` of those that would get
    shorter; `when` is about these, and `period` is the n of "every n-th" call or event (else 0).

    How much: `gain_ns` is what all replayed calls together get shorter, on top of the findings
    before it; `gains_ns` has it by call and `share` as a part of `total_ns`, which all these calls
    took. `alone_ns` is the gain without the findings before it, `interval_ns` where the gain lies
    with 90 % when calls are drawn again. `factor` is how many times as long, or as many, as at
    comparable places. `together` is how many findings pay only together, and the share that they
    then gain; (0, 0.0) for one that pays by itself. If only counts are known, `is_timed` is false
    and gains are 0.

    Of a trace that was looked up: `id`; `particulars`, which only its kind knows; `waits`,
    those of other ranks that end with it; `arrival`, where it makes its ranks late for the others;
    `rate`, GB/s of the region per rank and its part of a copy's; `where_ns` and `tracks` (rank,
    block), the stretch of the trace that shows it, the track that shows it most and one to see
    beside it (block LAUNCHES: the rank's kernel launches); `evidence`, the table behind it.
    `warm_up` are calls that were left out, `is_on_gpu` says what ran it, and `is_hidden` that a
    finding before it has to be fixed first. `verified` is what an experiment on the machine showed.
    """

    kind: Kind
    ranks: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    places: tuple[tuple[int, int], ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    hosts: tuple[str, ...] = ()
    rail: int | None = None
    host_links: tuple[tuple[str, str], ...] = ()
    region: str | None = None
    processors: tuple[int, ...] = ()
    position: str = ""
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
    total_ns: float = 0.0
    together: tuple[int, float] = (0, 0.0)
    is_timed: bool = True
    id: str = ""
    particulars: Any = None
    waits: tuple[Caused, ...] = ()
    arrival: Arrival | None = None
    rate: tuple[float | None, float | None] = (None, None)
    where_ns: tuple[int, int] | None = None
    tracks: tuple[tuple[int, int], ...] = ()
    evidence: tuple[Mapping[str, Any], ...] = ()
    warm_up: tuple[int, ...] = ()
    is_on_gpu: bool = False
    is_hidden: bool = False
    verified: Verified | None = None

    @property
    def link(self) -> tuple[int, int] | None:
        """The link, where it is one."""
        return self.links[0] if len(self.links) == 1 else None

    @property
    def who_waits(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ranks that wait because of it, and those that they wait for."""
        waiting = {rank for wait in self.waits for rank in wait.ranks}
        peers = {rank for wait in self.waits for rank in wait.peers}
        return tuple(sorted(waiting)), tuple(sorted(peers))

    @property
    def fact(self) -> str:
        """What is wrong, and in which calls."""
        return self.kind.fact(self)

    @property
    def sentence(self) -> str:
        """What is wrong, in which calls, and what fixing it would save."""
        if not self.is_timed:
            return self.fact
        saving = words.saving(self)
        ends = (f"{self.kind.fixing} would save {saving}", f"costs {saving}")
        facts = (self.fact + self.kind.consequence(self), self.fact)
        texts = [f"{fact}; {end}" for fact in facts for end in ends]
        is_short = (text for text in texts if len(text.split()) <= words.MOST_WORDS)
        return next(is_short, texts[-1])

    @property
    def advice(self) -> str:
        """What to look at, or to do."""
        if self.when is When.GROWING:
            return "look for what accumulates from call to call: queues, tables, memory, heat"
        return self.kind.advice(self)

    @property
    def details(self) -> tuple[str, ...]:
        """The numbers behind the sentence."""
        lines = words.details(self) if self.is_timed else ()
        tried = (words.verified(self.verified),) if self.verified else ()
        return (*lines, *words.chain(self), *self.kind.details(self), *tried)


class Kind:
    """A kind of finding: all that is special about it, from the candidates to the documentation.

    A kind is a file in `kinds/` with a subclass of this and one instance of it, `KIND`. `order` is
    when it looks for candidates: a kind takes what it finds out of what later kinds see.
    """

    name: ClassVar[str]
    # For the table in docs/findings.md: what is found, and what the replay changes.
    finds: ClassVar[str]
    replays: ClassVar[str]
    rests_on: ClassVar[frozenset[RestsOn]]
    order: ClassVar[int] = 5
    # The subject of "... would save 12 %".
    fixing: ClassVar[str] = "fixing it"
    # Figures of the page that show it, the most telling one first; before them, where the region
    # is one that waits, those of waits.
    figures: ClassVar[tuple[str, ...]] = ()
    figures_of_waits: ClassVar[tuple[str, ...]] = ()
    # The families of elements whose places are of this kind, if they take longer and account for
    # almost all of the gain; None: where no family does.
    covered: ClassVar[tuple[Family | None, ...]] = ()
    # Whether it is about how long a region's own work takes.
    is_work: ClassVar[bool] = False
    # Whether its places are calls.
    is_of_calls: ClassVar[bool] = False
    # Whether it compares numbers of items, not lengths of time.
    counts_items: ClassVar[bool] = False

    def candidates(self, comparable: Comparable) -> list[Candidate]:
        """What could be as it usually is, among elements that do the same thing."""
        return []

    def covers(self, candidate: Candidate, family: Family | None) -> bool:
        """Whether places that take longer are of this kind, by the family that gains."""
        return family in self.covered

    def placed(self, finding: Finding, ranks: Sequence[int]) -> Finding:
        """The finding with its place among the ranks that ran."""
        return finding

    def among(self, finding: Finding, recorded: frozenset[int]) -> Finding:
        """The finding among the ranks that were recorded: what all of them have is no rank's."""
        is_all = len(recorded) > 1 and set(finding.ranks) == recorded
        return replace(finding, ranks=()) if is_all and not finding.blocks else finding

    def looked_up(self, summary: Summary, finding: Finding) -> Finding:
        """The finding with what tables know beyond the replay."""
        return finding

    def counted(self, summary: Summary) -> list[Finding]:
        """Findings that need no times, only numbers of events."""
        return []

    def shown_at(self, summary: Summary, finding: Finding, ordinal: int) -> Where | None:
        """The stretch of a call, and the tracks, that show it; None for the usual way, which is the
        block with the most of it beside an ordinary one (`places.py`)."""
        return None

    def fact(self, finding: Finding) -> str:
        """What is wrong, and in which calls; at most 16 words."""
        raise NotImplementedError

    def consequence(self, finding: Finding) -> str:
        """What follows behind the fact: and arrives 233 us late at AllReduce RING LL"""
        return "" if finding.arrival is None else f" and {words.arrives(finding, finding.arrival)}"

    def advice(self, finding: Finding) -> str:
        """What to look at, or to do."""
        raise NotImplementedError

    def details(self, finding: Finding) -> tuple[str, ...]:
        """Further lines of numbers."""
        return ()

    def growth(self, finding: Finding, measured: Measured | None, is_gone: bool) -> str:
        """What takes longer than in another recording, or (`is_gone`) took longer before."""
        return words.growth(finding, measured, is_gone)

    def __repr__(self) -> str:
        """slow"""
        return self.name
