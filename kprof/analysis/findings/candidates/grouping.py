"""Joins candidates: all that one place has too much of, and places with too much of the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from math import exp, inf, lgamma, log
from typing import TypeVar

import numpy as np

from kprof.analysis.findings.candidates.candidate import (
    Basis,
    Candidate,
    Place,
    is_once,
    union,
    without_chance,
)
from kprof.analysis.findings.candidates.excess import ALL
from kprof.analysis.findings.thresholds import (
    ALIKE,
    ALL_BUT_FEW,
    CALLS_OF_OUTER,
    FEW_RATIO,
    LEAST_TO_MOVE,
    MOST_AT_ONE_PLACE,
    NEARLY_ALL_CALLS,
    NEARLY_AS_MUCH,
    NOT_BY_CHANCE,
    OFTEN,
    ONCE_RATIO,
    RARE,
    SAME_CALLS,
    SHARED_CLASSES,
    UNEVEN,
    UNLIKELY,
    UNLIKELY_TO_MOVE,
    WHOLE,
)
from kprof.analysis.replay.columns import grouped, grouped_median
from kprof.analysis.replay.elements import Family

_T = TypeVar("_T")


def joined(basis: Basis, found: list[Candidate]) -> list[Candidate]:
    """Candidates about places that are alike as one; the others as they are."""
    others = [h for h in found if h.is_alone]
    single = [h for h in found if not h.is_alone]
    places = [without_chance(basis, place) for place in _by_place(basis, single)]
    united = [one for group in _alike_groups(places) for one in _parted(basis, group)]
    return others + [one for one in united if not _is_chance(basis, one)]


def _by_place(basis: Basis, single: list[Candidate]) -> list[Candidate]:
    """One candidate per place and what is wrong with it: in all of its classes together.

    A host that launches late does not make the kernel slow: of what is slow, only looks at flags
    that come with a late start are part of it.
    """
    groups: dict[tuple[str | None, Place], list[Candidate]] = {}
    starts: dict[tuple[str | None, Place], list[Candidate]] = {}
    for candidate in single:
        is_start = all(basis.classes[n].family is Family.LAUNCH for n in candidate.classes)
        chosen = starts if is_start else groups
        chosen.setdefault((candidate.kind, candidate.places[0]), []).append(candidate)
    united = {key: union(members, members[0].places) for key, members in groups.items()}
    apart = []
    for key, members in starts.items():
        start = union(members, members[0].places)
        work = united.get(key)
        if work is not None and _are_looks(basis, work) and _comes_with(start, work):
            united[key] = union([work, start], start.places)
        else:
            apart.append(start)
    return _absorbed(basis, [*united.values(), *apart])


def _are_looks(basis: Basis, work: Candidate) -> bool:
    """Whether all of it is looks at flags, and none of it the work of the rank."""
    classes, is_wait = [basis.classes[n] for n in work.classes], basis.graph.is_wait
    regions = np.unique(basis.graph.spans.region[is_wait])
    return all(one.family is Family.OWN and one.region in regions for one in classes)


def _comes_with(start: Candidate, work: Candidate) -> bool:
    """Whether work is slow in about the same calls, or in no call but those that start late; of few
    calls that is chance."""
    is_both = work.calls & start.calls
    are_all = is_both.sum() >= max(NOT_BY_CHANCE, ALL_BUT_FEW * work.calls.sum())
    return bool(are_all) or _in_same_calls(work, start)


def _is_chance(basis: Basis, candidate: Candidate) -> bool:
    """Single elements that took somewhat longer, in few calls, as others did here and there."""
    saved = candidate.saved_ns
    elements, chosen = basis.elements, candidate.chosen
    calls = len(np.unique(elements.call[chosen]))
    effective = float(saved.sum() ** 2 / (saved**2).sum())
    is_several = len(candidate.places) > 1
    # Noise hits several places, too, but hardly one in each of many calls.
    often = (2 * LEAST_TO_MOVE, NEARLY_ALL_CALLS) if is_several else (LEAST_TO_MOVE, OFTEN)
    if effective > 3 * calls or calls >= max(often[0], often[1] * basis.num_calls):
        return False
    value = elements.value_ns[chosen]
    largest = int(saved.argmax())
    factor = float(value[largest] / max(value[largest] - saved[largest], 1e-9))
    # Of single blocks, each may have one in the same call.
    num_lone = calls
    if is_several and all(place.second != ALL for place in candidate.places):
        where = np.stack([elements.call, elements.first, elements.second])[:, chosen]
        num_lone = np.unique(where, axis=1).shape[1]
    wanted = ONCE_RATIO if effective <= 1.5 * num_lone else FEW_RATIO
    if is_several and not candidate.is_moving:
        return factor < wanted
    count = calls if is_several else max(1, round(effective))
    is_little = factor < wanted
    unlikely = UNLIKELY_TO_MOVE if candidate.is_moving else UNLIKELY
    if is_little and _chance(basis, candidate, count) >= unlikely:
        return True
    # Of several places no element may be left that would tell noise.
    return (is_little or is_several) and not _is_unlike(basis, candidate, factor)


def _chance(basis: Basis, candidate: Candidate, count: int) -> float:
    """How likely just so many elements of a run take long by chance, all of them in this place, or,
    of what moves, each in a call of its own."""
    elements, place = basis.elements, candidate.places[0]
    # Where there are more than usual in a run, there are about as many as these.
    expected = max(float(count), RARE * float((elements.family == Family.OWN).sum()))
    # In logarithms: of hundreds of elements, the factors themselves do not fit a float.
    poisson = count * log(expected) - expected - lgamma(count + 1)
    if candidate.is_moving:
        calls, spare = basis.num_calls, basis.num_calls - count
        ways = lgamma(calls + 1) - lgamma(spare + 1) if spare >= 0 else -inf
        return exp(poisson + ways - count * log(calls))
    is_like = elements.family == elements.family[candidate.chosen[0]]
    ends = ((place.first, elements.first), (place.second, elements.second))
    columns = [column[is_like] for end, column in ends if end != ALL]
    num_like = len(grouped(*columns)[0]) if columns else 1
    return exp(poisson - (count - 1) * log(num_like))


def _is_unlike(basis: Basis, candidate: Candidate, factor: float) -> bool:
    """Whether so much is no noise: no other element takes nearly as many times as long as those of
    its class usually do."""
    elements = basis.elements
    others = np.setdiff1d(np.flatnonzero(elements.family == Family.OWN), candidate.chosen)
    if factor < UNEVEN:
        return False
    number, value = elements.kind[others], elements.value_ns[others]
    usual = grouped_median(number, value, len(basis.classes))[number]
    is_long = value > np.exp(NEARLY_AS_MUCH * np.log(factor)) * np.maximum(usual, 1.0)
    return not is_long.any()


def _contains(outer: Place, inner: Place) -> bool:
    return (
        (outer.is_link, outer.is_processor) == (inner.is_link, inner.is_processor)
        and outer != inner
        and outer.first in (ALL, inner.first)
        and outer.second in (ALL, inner.second)
    )


def _absorbed(basis: Basis, united: list[Candidate]) -> list[Candidate]:
    """A slow rank's block that stands out as much in other classes belongs to the rank."""
    parts: dict[int, list[Candidate]] = {i: [outer] for i, outer in enumerate(united)}
    # A block or a link contains no other place.
    outers = [
        (i, h) for i, h in enumerate(united) if ALL in (h.places[0].first, h.places[0].second)
    ]
    absorbed: set[int] = set()
    for number, inner in enumerate(united):
        for i, outer in outers:
            if _belongs_to(basis, inner, outer):
                parts[i].append(inner)
                absorbed.add(number)
                break
    return [union(members, members[0].places) for i, members in parts.items() if i not in absorbed]


def _belongs_to(basis: Basis, inner: Candidate, outer: Candidate) -> bool:
    """Whether it is in the outer one's place, in its calls, and as much, in other classes."""
    if inner.kind != outer.kind or not _contains(outer.places[0], inner.places[0]):
        return False
    both = inner.calls & outer.calls
    if both.sum() < CALLS_OF_OUTER * inner.calls.sum() or inner.classes & outer.classes:
        return False
    families = [{basis.classes[n].family for n in h.classes} for h in (inner, outer)]
    if len(inner.classes) > len(outer.classes) or not families[0] & families[1]:
        return False
    highest = outer.excess.max()
    return bool(abs(inner.excess.max() - highest) < ALIKE * highest)


def _shape(candidate: Candidate) -> tuple[str | None, bool, bool, bool, bool]:
    place = candidate.places[0]
    is_open = place.first == ALL, place.second == ALL
    return candidate.kind, place.is_link, place.is_processor, *is_open


def _are_alike(one: Candidate, other: Candidate) -> bool:
    """The same classes, about as much, in the same calls.

    Or in calls of their own, as of what moves.
    """
    here, there = one.places[0], other.places[0]
    is_near = here.first == there.first or here.second == there.second
    # Most pairs fail here, and fast.
    if not (_are_apart(one, other) or (is_near and _in_same_calls(one, other))):
        return False
    return _look_alike(one, other)


def _look_alike(one: Candidate, other: Candidate) -> bool:
    """The same classes, about as much."""
    if _shape(one) != _shape(other):
        return False
    shared = len(one.classes & other.classes) / len(one.classes | other.classes)
    # Of a place that is slow in all it does, what it does tells nothing: ranks may have roles of
    # their own.
    is_whole = min(len(one.classes), len(other.classes)) >= WHOLE
    if shared < (SHARED_CLASSES / 2 if is_whole else SHARED_CLASSES):
        return False
    return abs(one.height - other.height) <= ALIKE * max(one.height, other.height)


def _in_same_calls(one: Candidate, other: Candidate) -> bool:
    both, either = one.call_bits & other.call_bits, one.call_bits | other.call_bits
    return both.bit_count() >= SAME_CALLS * either.bit_count()


def _are_apart(one: Candidate, other: Candidate) -> bool:
    """Each in calls of its own, and not in most of them."""
    if one.call_bits & other.call_bits:
        return False
    most = max(one.call_bits.bit_count(), other.call_bits.bit_count())
    return most <= MOST_AT_ONE_PLACE * len(one.calls)


def _alike_groups(united: list[Candidate]) -> list[list[Candidate]]:
    """Places that are alike are one candidate: ranks 4 to 7, or a straggler that moves."""
    return _groups(sorted(united, key=lambda h: -float(h.saved_ns.sum())), _are_alike)


def _parted(basis: Basis, group: list[Candidate]) -> list[Candidate]:
    """One candidate, unless it is two places in calls of their own that do not take turns.

    Ranks that start late in turn are one finding, which names how often each is the last.
    """
    families = {basis.classes[n].family for one in group for n in one.classes}
    is_two = len(group) == 2 and _are_apart(*group) and not _take_turns(group)
    return group if is_two and Family.LAUNCH not in families else [_together(group)]


def with_scattered(basis: Basis, found: list[Candidate]) -> list[tuple[Candidate, tuple[int, ...]]]:
    """What is alike in the same calls wherever it is, with the numbers of its parts: links between
    two hosts have no end in common, and none of them gains anything as long as the others are slow.

    What single places do once, in one call, is no more than chance when two do it.
    """

    def are_at_once(one: int, other: int) -> bool:
        return _look_alike(found[one], found[other]) and _in_same_calls(found[one], found[other])

    places = [
        i
        for i, h in enumerate(found)
        if not h.is_alone and not h.is_moving and (h.places[0].is_link or not is_once(basis, h))
    ]
    groups = _groups(places, are_at_once)
    return [(_together([found[i] for i in group]), tuple(group)) for group in groups if group[1:]]


def _groups(members: list[_T], are_alike: Callable[[_T, _T], bool]) -> list[list[_T]]:
    """Each member goes to the first group with whose members it is alike."""
    groups: list[list[_T]] = []
    for member in members:
        for group in groups:
            if all(are_alike(other, member) for other in group):
                group.append(member)
                break
        else:
            groups.append([member])
    return groups


def _together(group: list[Candidate]) -> Candidate:
    places = sorted({place for m in group for place in m.places}, key=lambda p: (p.first, p.second))
    pairs = itertools.combinations(group, 2)
    is_moving = len(group) >= LEAST_TO_MOVE and all(_are_apart(*pair) for pair in pairs)
    return replace(union(group, tuple(places)), is_moving=is_moving or _take_turns(group))


def _take_turns(group: list[Candidate]) -> bool:
    """Two places, each in calls of its own, and one of the two in every call."""
    if len(group) != 2 or not _are_apart(*group):
        return False
    calls = [h.calls for h in group]
    return bool(
        min(c.sum() for c in calls) > 2 and (calls[0] | calls[1]).mean() >= NEARLY_ALL_CALLS
    )
