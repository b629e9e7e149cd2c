"""Findings: facts about one thing that pays, and their kinds, which put them into words.

A finding holds facts and no text. Its kind (`kinds/`, one file each) makes the sentence and the
advice from these facts when somebody asks for them, and nothing reads them but people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

from kprof.analysis.findings import words
from kprof.analysis.findings.candidates.candidate import Candidate, Comparable
from kprof.analysis.findings.facts import Facts, GrownRegion, Where
from kprof.analysis.findings.when import When
from kprof.analysis.replay.elements import Family
from kprof.analysis.summary import Summary


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
class Finding(Facts):
    """One thing that pays, with the words of its kind."""

    kind: Kind

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
        ends = [f"{self.kind.fixing} would save {saving}", f"costs {saving}"]
        if self.is_by_design:
            ends = [f"that costs {saving}"]
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

    def growth(self, finding: Finding, measured: GrownRegion | None, is_gone: bool) -> str:
        """What takes longer than in another recording, or (`is_gone`) took longer before."""
        return words.growth(finding, measured, is_gone)

    def __repr__(self) -> str:
        """slow"""
        return self.name
