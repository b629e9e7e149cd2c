"""Elements that stand out by themselves all over the run, or all over a rank: every n-th, or some
in every block."""

from __future__ import annotations

from dataclasses import replace
from math import exp, lgamma, log

import numpy as np

from kprof.analysis.findings.candidates.candidate import (
    Basis,
    Candidate,
    Comparable,
    Place,
    without_chance,
)
from kprof.analysis.findings.candidates.crossings import hosts_of
from kprof.analysis.findings.candidates.excess import ALL
from kprof.analysis.findings.candidates.slow_places import log_spread
from kprof.analysis.findings.thresholds import (
    FLOOR,
    ITEM_RATIO,
    ITEM_SIGMAS,
    LATER_PER_TRACK,
    LEAST_ELEMENTS,
    LEAST_ITEM_SPREAD,
    LEAST_KNOWN,
    LEAST_PLACES,
    LEAST_SLOW_ITEMS,
    LEAST_TOLD,
    MOST_OF_CELL,
    MOST_OF_PLACE,
    MOST_SAVED,
    MOST_SLOW_ITEMS,
    NEARLY_ALL_CALLS,
    NEARLY_ALL_COLD,
    NOT_BY_CHANCE,
    OFTEN,
    OFTEN_BY_CHANCE,
    SLOW_NETWORK,
    UNEVEN,
    UNLIKELY_ON_A_RANK,
)
from kprof.analysis.replay.columns import grouped, grouped_median
from kprof.analysis.replay.elements import Family
from kprof.analysis.replay.spans import Bools, Floats, Ints


def outliers(
    one: Comparable, kind: str, *, is_periodic: bool = False, least_places: int = 2
) -> list[Candidate]:
    """The elements of a class that stand out, as a candidate of the kind of this name.

    In `value_ns` they are as usual afterwards. Looks for every n-th of a track if `is_periodic`.
    Fewer than `least_places` of a call are one place that is slow there.
    """
    value, elements = one.value_ns, one.basis.elements
    if len(value) < LEAST_ELEMENTS or not one.is_alike:
        return []
    base = float(np.quantile(value, 0.3))
    of_place, own = _bases_of_places(one.basis, one.chosen, value)
    is_out = _outliers(one, base, of_place, own)
    if not is_out.any() or is_out.mean() > MOST_SLOW_ITEMS or _is_network(one, is_out):
        return []
    least_places = least_places if _moves(one, is_out) else 1
    # All elements of a slow place take longer: they count as if it were as fast as the others.
    at_base = value * np.minimum(1.0, base / np.maximum(of_place, 1e-9))
    is_rare = bool(is_out.mean() < LEAST_SLOW_ITEMS)
    are_everywhere = (
        not (is_rare and _in_few_calls(one, is_out))
        and _is_spread(one, is_out, at_base, least_places)
        and _is_mixed(one, is_out)
    )
    if not are_everywhere:
        return _on_one_rank(one, kind, is_out)
    out = one.chosen[is_out]
    usual, slow = float(value[~is_out].mean()), float(np.median(value[is_out]))
    excess = np.zeros(one.basis.num_calls)
    excess[np.unique(elements.call[out])] = np.log(slow / max(usual, one.least_ns))
    saved = value[is_out] * (1 - usual / slow)
    # What one of them has on top is its own.
    saved = np.minimum(saved, MOST_SAVED * np.median(saved))
    value[is_out] -= saved
    period, position = 0, _position(one, is_out)
    if position and len(one.chosen) < (1 + LATER_PER_TRACK) * is_out.sum():
        if position == "first":
            # Of few, and the same everywhere: another phase of the kernel under the same name.
            return []
        position = ""
    if is_periodic and not position:
        turn = elements.turn[one.chosen]
        period = _period(turn[is_out], int(turn.max()) + 1)
        if _is_phase(turn, is_out, value):
            return []
    everywhere = (Place(ALL, ALL),)
    found = Candidate(kind, everywhere, one.classes, excess, out, saved, is_alone=True)
    found = replace(found, period=period, position=position, is_rare=is_rare)
    return [without_chance(one.basis, found)]


def _moves(one: Comparable, is_out: Bools) -> bool:
    """Whether they are one place in most of the calls: a straggler that moves. Chance gives some
    calls two, and others none."""
    elements, out = one.basis.elements, one.chosen[is_out]
    examples, _ = grouped(elements.call[out], elements.first[out], elements.second[out])
    num_places = np.bincount(elements.call[out[examples]])
    num_calls = np.count_nonzero(num_places)
    is_one = np.count_nonzero(num_places == 1) >= NEARLY_ALL_CALLS * num_calls
    return bool(is_one and num_calls >= OFTEN_BY_CHANCE * one.basis.num_calls)


def _is_network(one: Comparable, is_out: Bools) -> bool:
    """Whether nearly all of them read from another host, or write to it, and take no longer for it
    than a network does."""
    graph, elements, chosen = one.basis.graph, one.basis.elements, one.chosen
    at, hosts = elements.at[chosen], hosts_of(graph)
    peer = graph.spans.peer[at]
    if one.family is not Family.OWN or not graph.spans.names_peer[at].all():
        return False
    is_across = hosts[elements.first[chosen]] != hosts[np.minimum(peer, len(hosts) - 1)]
    if is_across.all() or is_across[is_out].mean() < NEARLY_ALL_COLD:
        return False
    across, within = (float(np.median(one.value_ns[its])) for its in (is_across, ~is_across))
    return across < SLOW_NETWORK * max(within, one.least_ns)


def _in_few_calls(one: Comparable, is_out: Bools) -> bool:
    """Whether some calls have none, or there are few calls: then few elements are chance."""
    calls = one.basis.elements.call[one.chosen[is_out]]
    return len(np.unique(calls)) < max(NOT_BY_CHANCE, NEARLY_ALL_CALLS * one.basis.num_calls)


def _on_one_rank(one: Comparable, kind: str, is_out: Bools) -> list[Candidate]:
    """The same among the elements of the rank that has more of them than chance gives it: they stay
    in `value_ns`, for that rank may as well be slow."""
    first = one.basis.elements.first[one.chosen]
    most = int(np.bincount(first[is_out]).argmax())
    is_its = first == most
    if one.family is not Family.OWN or is_its.all():
        return []
    count, own = int(is_out.sum()), int((is_out & is_its).sum())
    by_chance = _tail(own, count, float(is_its.mean())) * len(np.unique(first))
    if by_chance > UNLIKELY_ON_A_RANK:
        return []
    its = Comparable(one.basis, one.number, one.chosen[is_its], one.value_ns[is_its])
    place = (Place(most, ALL),)
    return [replace(found, places=place) for found in outliers(its, kind, least_places=1)]


def _tail(least: int, count: int, share: float) -> float:
    """How likely at least so many of a count are among a share of all (binomial)."""
    odds, rest = log(share) - log(1 - share), count * log(1 - share)
    all_ways = lgamma(count + 1)
    return sum(
        exp(all_ways - lgamma(n + 1) - lgamma(count - n + 1) + n * odds + rest)
        for n in range(least, count + 1)
    )


def _outliers(one: Comparable, base: float, of_place: Floats, own: Floats) -> Bools:
    value = one.value_ns
    least = one.least_ns
    spread = max(LEAST_ITEM_SPREAD, log_spread(value / np.maximum(own, least) * max(base, least)))
    limit = np.exp(max(np.log(ITEM_RATIO), ITEM_SIGMAS * spread))
    limit = limit * np.maximum(of_place, max(base, least))
    return (value > limit) & (value - base > 0.1 * FLOOR * one.basis.call_ns)


def _is_spread(one: Comparable, is_out: Bools, value: Floats, least_places: int) -> bool:
    """Whether they are in about as many places, ranks and blocks as chance would have it, in a call
    and over all calls: a place that has them all to itself is a place that is slow."""
    first, second = one.basis.elements.first[one.chosen], one.basis.elements.second[one.chosen]
    columns = [grouped(*place)[1] for place in ((first, second), (first,), (second,))]
    call = one.basis.elements.call[one.chosen[is_out]]
    beyond = value[is_out] - float(value[~is_out].mean())
    return all(
        _is_by_chance(column, call, is_out, least_places) and _is_shared(column, is_out, beyond)
        for column in columns
    )


def _is_shared(place: Ints, is_out: Bools, beyond_ns: Floats) -> bool:
    """Whether no place has most of the time that is lost: chance events elsewhere do not make it
    less than one place's."""
    lost = np.bincount(place[is_out], weights=beyond_ns)
    most = max(MOST_OF_PLACE, 2 / (int(place.max()) + 1))
    return bool(lost.max() <= most * lost.sum())


def _is_by_chance(place: Ints, call: Ints, is_out: Bools, least_places: int) -> bool:
    num_places, place = int(place.max()) + 1, place[is_out]
    examples, _ = grouped(call, place)
    places_of_call = np.bincount(call[examples])
    has_some = places_of_call > 0
    count = np.bincount(call)[has_some]
    wanted = LEAST_PLACES * _by_chance(num_places, count)
    wanted = np.maximum(min(least_places, num_places), wanted)
    is_in_calls = np.mean(places_of_call[has_some] >= wanted) >= 0.5
    over_all = len(np.unique(place)) >= LEAST_PLACES * float(_by_chance(num_places, len(place)))
    return bool(is_in_calls) and over_all


def _by_chance(num_places: int, count: Ints | int) -> Floats:
    """In how many places so many elements are when they are thrown at random."""
    return num_places * (1 - (1 - 1 / num_places) ** np.asarray(count, dtype=float))


def _is_mixed(one: Comparable, is_out: Bools) -> bool:
    """Whether they are among others in the same place and call, which take as long as usual."""
    elements, chosen = one.basis.elements, one.chosen
    place = elements.first[chosen], elements.second[chosen]
    _, cell = grouped(elements.call[chosen], *place)
    if np.bincount(cell).max() == 1:
        # Of a place with one in a call, the other calls tell, where it is rare.
        if is_out.mean() > OFTEN:
            return False
        _, cell = grouped(*place)
    sizes, outs = np.bincount(cell), np.bincount(cell, weights=is_out)
    can_be_mixed = (outs > 0) & (sizes > 1)
    if can_be_mixed.sum() < 0.5 * (outs > 0).sum():
        return False
    others = one.value_ns[~is_out & can_be_mixed[cell]]
    if (outs[can_be_mixed] / sizes[can_be_mixed]).mean() > MOST_OF_CELL or not len(others):
        return False
    usual = one.value_ns[~is_out & ~can_be_mixed[cell]]
    return not len(usual) or bool(others.mean() < UNEVEN * usual.mean())


def _bases_of_places(basis: Basis, chosen: Ints, value: Floats) -> tuple[Floats, Floats]:
    """Low quantiles: the largest one of the element's call, its rank, its block, its place, and its
    place in its call, for all of a slow call is slow, and all of a slow block; and the last one of
    these that has enough elements."""
    elements = basis.elements
    call, rank, block = (c[chosen] for c in (elements.call, elements.first, elements.second))
    largest, own = np.zeros(len(value)), np.full(len(value), float(np.quantile(value, 0.3)))
    for columns in ((call,), (block,), (rank,), (rank, block), (call, rank, block)):
        _, group = grouped(*columns)
        sizes = np.bincount(group)
        order = np.lexsort((value, group))
        low = value[order][np.cumsum(sizes) - sizes + sizes // 5][group]
        largest = np.where(sizes[group] >= LEAST_KNOWN, np.maximum(largest, low), largest)
        own = np.where(sizes[group] >= LEAST_TOLD, low, own)
    return largest, own


def _position(one: Comparable, is_out: Bools) -> str:
    """Where on their tracks those that stand out are, and nothing else is: first, last, or ""."""
    turn = one.basis.elements.turn[one.chosen]
    track = one.basis.graph.spans.track[one.basis.elements.at[one.chosen]]
    last = np.zeros(int(track.max()) + 1, dtype=np.int64)
    np.maximum.at(last, track, turn)
    for name, is_there in (("first", turn == 0), ("last", turn == last[track])):
        if (is_there == is_out)[is_there | is_out].mean() >= NEARLY_ALL_COLD:
            return name
    return ""


def _is_phase(turn: Ints, is_out: Bools, value: Floats) -> bool:
    """Whether they are at the same turns of nearly all tracks, and not every n-th: another phase of
    the kernel under the same name. One turn is one if the others differ, too: steps that grow."""
    share = np.bincount(turn, weights=is_out) / np.maximum(1, np.bincount(turn))
    turns = np.flatnonzero(share > 0.5)
    are_same = ((share[turn] > 0.5) == is_out).mean() >= NEARLY_ALL_COLD
    if not are_same or len(turns) == 0:
        return False
    others = grouped_median(turn[~is_out], value[~is_out], len(share))
    is_growing = len(turns) == 1 and np.nanmax(others) > UNEVEN * np.nanmin(others)
    return bool(is_growing) or _period(turns, len(share)) == 0


def _period(turns: Ints, num_turns: int) -> int:
    """n where it is every n-th of a track's `num_turns`, else 0."""
    longest = min(64, num_turns)
    for period in range(2, longest + 1):
        if (turns % period == turns[0] % period).all():
            best = period
            while best * 2 <= longest and (turns % (best * 2) == turns[0] % (best * 2)).all():
                best *= 2
            return best
    return 0
