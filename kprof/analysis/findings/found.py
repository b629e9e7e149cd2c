"""All that can be said about a run: doubts, findings, and the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kprof.analysis.findings import words
from kprof.analysis.findings.differences import Difference
from kprof.analysis.findings.doubt import Doubt, DoubtKind
from kprof.analysis.findings.finding import Finding
from kprof.analysis.findings.limits import Limit, LimitKind
from kprof.analysis.findings.thresholds import IS_BUSY

# What every kernel that exchanges data has some of.
_EVERYWHERE: Final = (LimitKind.TRANSFERS, LimitKind.BARRIER, LimitKind.LAUNCHES)


@dataclass(frozen=True)
class Ingredient:
    """A large part of a typical call's critical path: a region, or a gap, and its share, 0 to 1.

    `gb_s` is what the region moves, the mean over ranks, `of_ceiling` its share of a copy's; None
    where nobody counted bytes or knows the device. `speed` says in words how near that is to the
    device's limit, or that nobody can tell; empty for gaps and waits, which move nothing.
    """

    region: str
    share: float
    gb_s: float | None
    of_ceiling: float | None
    advice: str
    speed: str = ""

    @property
    def rate(self) -> str:
        """Both in words."""
        return words.rate_words(self.gb_s, self.of_ceiling)


@dataclass(frozen=True)
class Rest:
    """What the calls looked at are made of: shares of their time, 0 to 1.

    `explained` is what all findings would save together, `useful` what blocks worked in the mean
    (the parallel efficiency), `unexplained` what neither accounts for. `limits` is what the
    kernel's design costs at most, each by itself, the largest first. `made_of` are the regions on
    the critical path of the call of median length, the largest share first; `ingredients` says of
    the largest ones how fast they are and what to do about them. `below` says what stands out in
    the counts and costs too little for a finding; `differences` are the largest ones between
    places that no finding takes away. `refused` findings contradicted the recording.
    """

    sentence: str
    explained: float
    useful: float | None = None
    unexplained: float | None = None
    limits: tuple[Limit, ...] = ()
    made_of: tuple[tuple[str, float], ...] = ()
    ingredients: tuple[Ingredient, ...] = ()
    below: str = ""
    differences: tuple[Difference, ...] = ()
    refused: int = 0

    @property
    def is_busy(self) -> bool:
        """Whether blocks work nearly all of the time."""
        return self.useful is not None and self.useful >= IS_BUSY


@dataclass(frozen=True)
class Findings:
    """All that can be said: doubts, findings in the order in which to mend them, and the rest.

    `calls` are the ordinals of the calls that were replayed, of `num_calls`; they took `total_ns`
    together. `design` is the limit that the headline is about, if it is about one.
    """

    doubts: tuple[Doubt, ...]
    findings: tuple[Finding, ...]
    rest: Rest
    calls: tuple[int, ...] = ()
    num_calls: int = 0
    total_ns: float = 0.0
    design: Limit | None = None

    @property
    def subject(self) -> Doubt | Limit | Finding | Rest:
        """What the headline is about: that the run hung, what pays most, or why nothing does."""
        if self._hung is not None:
            return self._hung
        limit = limit_in_front(self.rest, self.findings)
        return limit or (self.findings[0] if self.findings else self.rest)

    @property
    def headline(self) -> str:
        """What a reader sees first."""
        return self.subject.sentence

    @property
    def about(self) -> str:
        """Which calls the findings are about, where the headline is about a hang."""
        is_said = self._hung is not None and bool(self.findings or self.num_calls)
        return "What follows is about the calls that finished" if is_said else ""

    @property
    def advice(self) -> str:
        """What to do about what the headline says; empty where there is nothing to do."""
        subject = self.subject
        if isinstance(subject, Doubt):
            return subject.remedy
        if not isinstance(subject, Rest):
            return subject.advice
        first = next(iter(self.rest.ingredients), None)
        if first is None or self.rest.is_busy:
            return ""
        return f"{first.region} is the largest part of a call: {first.advice}"

    @property
    def banners(self) -> tuple[Doubt, ...]:
        """The grave doubts beside the headline."""
        return tuple(doubt for doubt in self.doubts if doubt.is_grave and doubt is not self._hung)

    @property
    def _hung(self) -> Doubt | None:
        hung = (doubt for doubt in self.doubts if doubt.kind is DoubtKind.HUNG and doubt.is_grave)
        return next(hung, None)

    @property
    def shown(self) -> tuple[Finding | Limit, ...]:
        """What readers number: the findings, then the design if the headline is about it."""
        return (*self.findings, *([self.design] if self.design else []))


def limit_in_front(rest: Rest, findings: Sequence[Finding]) -> Limit | None:
    """The design, where it costs more than anything that stands out; what no design is without only
    where nothing stands out at all."""
    pays = max((finding.share for finding in findings), default=0.0)
    for limit in rest.limits:
        is_choice = limit.kind not in _EVERYWHERE
        if (is_choice and limit.share > pays) or (not findings and not rest.is_busy):
            return limit
    return None
