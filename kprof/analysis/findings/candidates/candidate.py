"""A candidate: what could be as it usually is, and what that would take off which elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from kprof.analysis.findings.candidates.excess import ALL
from kprof.analysis.findings.thresholds import (
    LEAST_FLOOR_NS,
    LEAST_OF_CALL,
    LEAST_PLACES_OF_CALL,
    LEAST_SAVED,
    OTHER_SIZES,
)
from kprof.analysis.findings.when import grows
from kprof.analysis.replay.columns import grouped
from kprof.analysis.replay.elements import ElementClass, Elements, Family, elements_of
from kprof.analysis.replay.graph import Graph
from kprof.analysis.replay.spans import Bools, Floats, Ints


@dataclass(frozen=True)
class Place:
    """Where: rank and block, or rank and SM (CU), or both ends of a link; ALL: every one."""

    first: int
    second: int
    is_link: bool = False
    is_processor: bool = False


@dataclass(frozen=True)
class Candidate:
    """What to take off which elements (`chosen`, `saved_ns`), so that they are as they usually are.

    `kind` is the name of the kind of finding that it makes; None for places that take longer,
    where that depends on which of their elements gain most. `places` are in calls of their own
    if it `is_moving`; `position` is where its elements are on their tracks: "first", "last" or "".
    `classes` are those of the elements; `excess[call]` is the largest excess of a class there, a
    logarithm. `period` is the n of "every n-th element", else 0. One that `is_alone` is not joined
    with others that are alike; one that `counts_items` is about their number, not their length. One
    that `is_by_design` comes last, and only where it costs more than all that is found. One that
    `is_rare` is chance unless it gains much.
    """

    kind: str | None
    places: tuple[Place, ...]
    classes: frozenset[int]
    excess: Floats
    chosen: Ints
    saved_ns: Floats
    period: int = 0
    position: str = ""
    is_moving: bool = False
    is_alone: bool = False
    counts_items: bool = False
    is_by_design: bool = False
    is_rare: bool = False

    @cached_property
    def calls(self) -> Bools:
        """In which calls there is anything to take off."""
        return self.excess > 0

    @cached_property
    def call_bits(self) -> int:
        """The same calls as the bits of a number: every pair of candidates is compared by them."""
        return int.from_bytes(np.packbits(self.calls).tobytes(), "big")

    @cached_property
    def height(self) -> float:
        """The median excess of these calls; every pair of candidates is compared by it."""
        return float(np.median(self.excess[self.calls]))


@dataclass(frozen=True)
class Basis:
    """The elements of a graph, their classes, how long calls usually are, and, by family, the
    element of every span.

    `of_span[family][span]` is -1 where a span has none: launches have none at all.
    """

    graph: Graph
    elements: Elements
    classes: list[ElementClass]
    call_ns: float
    of_span: dict[Family, Ints]

    @property
    def num_calls(self) -> int:
        """The number of calls."""
        return self.graph.spans.num_calls

    @cached_property
    def firsts_of_classes(self) -> Ints:
        """By class the first one that differs from it in no more than what is before its gaps."""
        firsts: dict[ElementClass, int] = {}
        alike = [replace(one, before=0) for one in self.classes]
        return np.array([firsts.setdefault(one, i) for i, one in enumerate(alike)], dtype=np.int64)

    def first_classes(self, chosen: Ints) -> Ints:
        """The class of each of the elements, or the first one like it."""
        return self.firsts_of_classes[self.elements.kind[chosen]]

    def least_ns(self, family: Family) -> float:
        """The least time that the clocks can tell from none: a step, or, from rank to rank, how far
        off two of them may be."""
        is_across = family in (Family.TRAVEL, Family.LAUNCH)
        return max(1.0, self.graph.spans.step_ns, self.graph.bound_ns if is_across else 0.0)


def basis_of(graph: Graph) -> Basis:
    """The elements of a graph."""
    elements, classes = elements_of(graph)
    lengths = graph.call_end - graph.call_start
    of_span = {}
    for family in (Family.OWN, Family.GAP, Family.TRAVEL):
        of_family = np.flatnonzero(elements.family == family)
        of_span[family] = np.full(len(graph.spans), -1, dtype=np.int64)
        of_span[family][elements.at[of_family]] = of_family
    call_ns = float(np.median(lengths)) if len(lengths) else 0.0
    return Basis(graph, elements, classes, call_ns, of_span)


@dataclass
class Comparable:
    """The elements of one class, which do the same thing: kinds look for candidates in these.

    `number` is that of the class, `value_ns` what is left to explain of each element: a kind takes
    out what it has found, for those after it.
    """

    basis: Basis
    number: int
    chosen: Ints
    value_ns: Floats

    @property
    def family(self) -> Family:
        """What kind of time it is: work, a gap, a transfer, a launch."""
        return self.basis.classes[self.number].family

    @property
    def is_alike(self) -> bool:
        """Whether its elements do the same thing."""
        return self.basis.classes[self.number].is_alike

    @property
    def least_ns(self) -> float:
        """The least time of one that the clocks can tell from none."""
        return self.basis.least_ns(self.family)

    @property
    def floor_ns(self) -> float:
        """Less than this in a call is not looked at; above 0, also where all is one moment."""
        return max(LEAST_SAVED[self.family] * self.basis.call_ns, LEAST_FLOOR_NS)

    @property
    def bound_ns(self) -> float:
        """How far off two clocks may be."""
        return self.basis.graph.bound_ns

    @property
    def classes(self) -> frozenset[int]:
        """Its number, as candidates have them."""
        return frozenset([self.number])


def union(members: Sequence[Candidate], places: tuple[Place, ...]) -> Candidate:
    """All of some candidates; of an element that several shorten, the largest part goes."""
    chosen = np.concatenate([member.chosen for member in members])
    saved = np.concatenate([member.saved_ns for member in members])
    distinct, inverse = np.unique(chosen, return_inverse=True)
    largest = np.zeros(len(distinct))
    np.maximum.at(largest, inverse, saved)
    return Candidate(
        members[0].kind,
        places,
        frozenset().union(*(member.classes for member in members)),
        np.max([member.excess for member in members], axis=0),
        distinct,
        largest,
        members[0].period,
        is_alone=members[0].is_alone,
        counts_items=members[0].counts_items,
    )


def without_chance(basis: Basis, candidate: Candidate) -> Candidate:
    """Leave out calls in which there is hardly anything to take off."""
    call = basis.elements.call[candidate.chosen]
    saved = np.bincount(call, weights=candidate.saved_ns, minlength=basis.num_calls)
    is_about = saved >= LEAST_OF_CALL * saved.max()
    kept = is_about[call]
    return replace(
        candidate,
        excess=np.where(is_about, candidate.excess, 0.0),
        chosen=candidate.chosen[kept],
        saved_ns=candidate.saved_ns[kept],
    )


def is_once(basis: Basis, candidate: Candidate) -> bool:
    """Whether it is about one place in one call, in one class: one event, or a few."""
    elements, chosen = basis.elements, candidate.chosen
    columns = (elements.kind, elements.call, elements.first, elements.second)
    return all((column[chosen] == column[chosen[0]]).all() for column in columns)


def is_usual(basis: Basis, candidate: Candidate) -> bool:
    """Whether all places have it in many calls: these are of several sizes, and none is slow; or
    most blocks have it there: then the few others have less to do, as at the edges of a matrix.

    What grows from call to call is no more usual at the end.
    """
    if candidate.kind is not None or candidate.is_moving:
        return False
    is_often = int(candidate.calls.sum()) > OTHER_SIZES * basis.num_calls
    if _are_most_blocks(basis, candidate):
        return is_often
    # Of a run with one rank, that rank is all places.
    is_one = len(np.unique(basis.graph.launch_rank)) == 1
    if any(
        place.is_link or place.second != ALL or not (is_one or place.first == ALL)
        for place in candidate.places
    ):
        return False
    return is_often and not grows(candidate.excess)


def _are_most_blocks(basis: Basis, candidate: Candidate) -> bool:
    places, elements = candidate.places, basis.elements
    # Few are never most of enough blocks; nearly all candidates are one place, of many elements.
    if len(places) <= LEAST_PLACES_OF_CALL:
        return False
    if any(place.is_link or place.is_processor or place.second == ALL for place in places):
        return False
    is_alike = np.isin(elements.kind, list(candidate.classes))
    blocks, _ = grouped(elements.first[is_alike], elements.second[is_alike])
    return len(blocks) >= 2 * LEAST_PLACES_OF_CALL and 2 * len(places) > len(blocks)
