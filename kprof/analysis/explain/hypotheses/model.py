"""What hypotheses are made of, and what they are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Final

import numpy as np

from kprof.analysis.explain.excess import ALL
from kprof.analysis.replay.elements import Elements, Family, Kind, elements_of
from kprof.analysis.replay.graph import Graph
from kprof.analysis.replay.spans import Bools, Floats, Ints

# What takes less than this share of a call is not looked at, wherever it is.
FLOOR: Final = 0.003
# What can be taken off a place in a call is looked at from this share of the call on.
LEAST_SAVED: Final = {
    Family.OWN: 0.004,
    Family.GAP: 0.015,
    Family.TRAVEL: 0.015,
    Family.LAUNCH: 0.03,
}
# Places have more than their likes from this ratio on.
UNEVEN: Final = 1.3
# Places are alike whose excesses, as logarithms, differ by less than this part of them.
ALIKE: Final = 0.3
# Calls with less than this part of what can be taken off the worst one do not count.
LEAST_OF_CALL: Final = 0.15
# Of fewer calls nobody can say that they take longer and longer.
_CALLS_THAT_GROW: Final = 5
_LEAST_CORRELATION: Final = 0.8


@dataclass(frozen=True)
class Place:
    """Where: rank and block, or source and destination of a link; ALL stands for every one."""

    first: int
    second: int
    is_link: bool = False


class What(str, Enum):
    """What is wrong, as far as a hypothesis says."""

    SLOW = "slow"  # takes longer than its likes
    ITEMS = "items"  # single elements stand out, all over the run
    SURPLUS = "surplus"  # more elements than its likes
    CROSSING = "crossing"  # links between groups of ranks
    UNEVEN = "uneven"  # few blocks have most of the elements


@dataclass(frozen=True)
class Hypothesis:
    """What to take off which elements; `excess[call]` is the largest excess of a class there, a
    logarithm.

    `places` are in calls of their own where it `is_moving`. `period` is the n of "every n-th
    element", else 0.
    """

    what: What
    places: tuple[Place, ...]
    kinds: frozenset[int]
    excess: Floats
    chosen: Ints
    saved_ns: Floats
    period: int = 0
    is_moving: bool = False

    @cached_property
    def calls(self) -> Bools:
        """In which calls there is anything to take off."""
        present: Bools = self.excess > 0
        return present

    @cached_property
    def height(self) -> float:
        """The median excess of these calls; every pair of hypotheses is compared by it."""
        return float(np.median(self.excess[self.calls]))


@dataclass(frozen=True)
class Basis:
    """The elements of a graph, their classes, how long calls usually are, and, by family, the
    element of every span.

    `of_span[family][span]` is -1 where a span has none: launches have none at all.
    """

    graph: Graph
    elements: Elements
    kinds: list[Kind]
    call_ns: float
    of_span: dict[Family, Ints]

    @property
    def num_calls(self) -> int:
        """The number of calls."""
        return self.graph.spans.num_calls

    @cached_property
    def firsts_of_kinds(self) -> Ints:
        """By class the first one that differs from it in no more than what is before its gaps."""
        firsts: dict[Kind, int] = {}
        likes = [replace(kind, before=0) for kind in self.kinds]
        return np.array(
            [firsts.setdefault(like, i) for i, like in enumerate(likes)], dtype=np.int64
        )

    def first_kinds(self, chosen: Ints) -> Ints:
        """The class of each of the elements, or the first one like it."""
        return self.firsts_of_kinds[self.elements.kind[chosen]]

    def least_ns(self, family: Family) -> float:
        """The least time that the clocks can tell from none: a step, or, from rank to rank, how far
        off two of them may be."""
        is_across = family in (Family.TRAVEL, Family.LAUNCH)
        return max(1.0, self.graph.spans.step_ns, self.graph.bound_ns if is_across else 0.0)


def basis_of(graph: Graph) -> Basis:
    """The elements of a graph."""
    elements, kinds = elements_of(graph)
    lengths = graph.call_end - graph.call_start
    of_span = {}
    for family in (Family.OWN, Family.GAP, Family.TRAVEL):
        of_family = np.flatnonzero(elements.family == family)
        of_span[family] = np.full(len(graph.spans), -1, dtype=np.int64)
        of_span[family][elements.at[of_family]] = of_family
    call_ns = float(np.median(lengths)) if len(lengths) else 0.0
    return Basis(graph, elements, kinds, call_ns, of_span)


@dataclass
class OneClass:
    """The elements of one class: what generators look at. `value_ns` is what is left to explain of
    each: a generator takes out what it has found, for those after it."""

    basis: Basis
    kind: int
    chosen: Ints
    value_ns: Floats
    bound_ns: float

    @property
    def family(self) -> Family:
        """What kind of elements these are."""
        return self.basis.kinds[self.kind].family

    @property
    def is_alike(self) -> bool:
        """Whether its elements do the same thing."""
        return self.basis.kinds[self.kind].is_alike

    @property
    def least_ns(self) -> float:
        """The least time of one that the clocks can tell from none."""
        return self.basis.least_ns(self.family)

    @property
    def floor_ns(self) -> float:
        """Less than this in a call is not looked at."""
        return LEAST_SAVED[self.family] * self.basis.call_ns

    def hypothesis(
        self, what: What, places: tuple[Place, ...], excess: Floats, chosen: Ints, saved_ns: Floats
    ) -> Hypothesis:
        """What is wrong with these elements of the class."""
        return Hypothesis(what, places, frozenset([self.kind]), excess, chosen, saved_ns)


def union(members: Sequence[Hypothesis], places: tuple[Place, ...]) -> Hypothesis:
    """All of some hypotheses; of an element that several shorten, the largest part goes."""
    chosen = np.concatenate([member.chosen for member in members])
    saved = np.concatenate([member.saved_ns for member in members])
    distinct, inverse = np.unique(chosen, return_inverse=True)
    largest = np.zeros(len(distinct))
    np.maximum.at(largest, inverse, saved)
    return Hypothesis(
        members[0].what,
        places,
        frozenset().union(*(member.kinds for member in members)),
        np.max([member.excess for member in members], axis=0),
        distinct,
        largest,
        members[0].period,
    )


def without_chance(basis: Basis, hypothesis: Hypothesis) -> Hypothesis:
    """Leave out calls in which there is hardly anything to take off."""
    call = basis.elements.call[hypothesis.chosen]
    saved = np.bincount(call, weights=hypothesis.saved_ns, minlength=basis.num_calls)
    is_about = saved >= LEAST_OF_CALL * saved.max()
    kept = is_about[call]
    return replace(
        hypothesis,
        excess=np.where(is_about, hypothesis.excess, 0.0),
        chosen=hypothesis.chosen[kept],
        saved_ns=hypothesis.saved_ns[kept],
    )


def is_once(basis: Basis, hypothesis: Hypothesis) -> bool:
    """Whether it is about one place in one call, in one class: one event, or a few."""
    elements, chosen = basis.elements, hypothesis.chosen
    columns = (elements.kind, elements.call, elements.first, elements.second)
    return all((column[chosen] == column[chosen[0]]).all() for column in columns)


def is_usual(basis: Basis, hypothesis: Hypothesis) -> bool:
    """Whether all places have it in most calls: that is how calls are, and none of them is slow.

    What grows from call to call is no more usual at the end.
    """
    if hypothesis.what is not What.SLOW or hypothesis.is_moving:
        return False
    if any(
        place.is_link or (place.first, place.second) != (ALL, ALL) for place in hypothesis.places
    ):
        return False
    return 2 * int(hypothesis.calls.sum()) > basis.num_calls and not grows(hypothesis.excess)


def grows(by_call: Floats) -> bool:
    """Whether the values rise with the numbers of their calls."""
    if len(by_call) < _CALLS_THAT_GROW or by_call.std() == 0:
        return False
    numbers = np.arange(len(by_call))
    return bool(np.corrcoef(numbers, by_call)[0, 1] > _LEAST_CORRELATION)
