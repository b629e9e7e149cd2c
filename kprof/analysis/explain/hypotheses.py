"""Hypotheses: what could be as it usually is. Each is a set of elements and what to take off them.

They come from the data: excesses of places (`excess.py`), united over all that one place has too much of and over
places that are alike; single elements that take much longer than others of their class, all over the run; items that
one place has too many of, wherever they are handled; and regions whose items few blocks have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kprof.analysis.explain.elements import Elements, Family, Kind, elements_of
from kprof.analysis.explain.excess import ALL, Atom, Cells, cells_of, find_excesses, grouped
from kprof.analysis.explain.graph import Graph
from kprof.analysis.explain.spans import Bools, Floats, Ints

# What takes less than this share of a call is not looked at, wherever it is.
_FLOOR: Final = 0.003
# Elements that take so many times as long as usual stand out by themselves...
_ITEM_RATIO: Final = 2.0
_ITEM_SIGMAS: Final = 5.0
# ...when they are so many, and in so many of the places that have the class.
_LEAST_SHARE: Final = 0.01
_MOST_SHARE: Final = 0.6
_LEAST_PLACES: Final = 0.6
# Of the excess of a cell, what single elements account for is taken from these.
_BY_OUTLIERS: Final = 0.5
_OUTLIER_RATIO: Final = 2.0
# Places are alike whose excesses, as logarithms, differ by less than this part of them.
_ALIKE: Final = 0.3
_UNEVEN: Final = 1.3
_LEAST_OF_CALL: Final = 0.15
# The spread of transfers' logarithms where too few were seen to tell.
_LINK_SPREAD: Final = 0.2
# What can be taken off a place in a call is looked at from this share of the call on.
_LEAST_SAVED: Final = {
    Family.OWN: 0.004,
    Family.GAP: 0.015,
    Family.TRAVEL: 0.015,
    Family.LAUNCH: 0.03,
}
# A single element that takes longer once, somewhere, is chance unless it takes so many times as long.
_ONCE_RATIO: Final = 5.0
_FEW_RATIO: Final = 2.5
_OFTEN: Final = 0.15


@dataclass(frozen=True)
class Place:
    """Where: rank and block, or source and destination of a link; ALL stands for every one."""

    first: int
    second: int
    is_link: bool = False


@dataclass(frozen=True)
class Hypothesis:
    """`what` is "slow", "surplus", "items" or "uneven"; `excess[call]` the largest excess of a class, a logarithm."""

    what: str
    places: tuple[Place, ...]
    kinds: frozenset[int]
    excess: Floats
    chosen: Ints
    saved_ns: Floats
    period: int = 0

    @property
    def calls(self) -> Bools:
        """In which calls there is anything to take off."""
        present: Bools = self.excess > 0
        return present


@dataclass(frozen=True)
class Basis:
    """The elements of a graph, their classes, how long calls usually are, and the gap before every span (-1: none)."""

    graph: Graph
    elements: Elements
    kinds: list[Kind]
    call_ns: float
    gap_of_span: Ints

    @property
    def num_calls(self) -> int:
        """The number of calls."""
        return self.graph.spans.num_calls


def basis_of(graph: Graph) -> Basis:
    """The elements of a graph."""
    elements, kinds = elements_of(graph)
    lengths = graph.call_end - graph.call_start
    gap_of_span = np.full(len(graph.spans), -1, dtype=np.int64)
    gaps = np.flatnonzero(elements.family == Family.GAP)
    gap_of_span[elements.at[gaps]] = gaps
    call_ns = float(np.median(lengths)) if len(lengths) else 0.0
    return Basis(graph, elements, kinds, call_ns, gap_of_span)


def hypotheses_of(basis: Basis, bound_ns: float = 0.0) -> list[Hypothesis]:
    """All hypotheses, each by itself against the run as it was; `bound_ns` is how far off two clocks may be."""
    found: list[Hypothesis] = []
    single: list[Hypothesis] = []
    for kind, description in enumerate(basis.kinds):
        chosen = np.flatnonzero(basis.elements.kind == kind)
        value = basis.elements.value_ns[chosen].copy()
        items = _slow_items(basis, kind, chosen, value)
        if items is not None:
            found.append(items)
        floor = _LEAST_SAVED[description.family] * basis.call_ns
        if description.family is Family.TRAVEL:
            single += _slow_links(basis, kind, chosen, max(floor, bound_ns))
            continue
        single += _slow_places(basis, kind, chosen, value, floor)
        if description.family is Family.OWN:
            surplus = _surplus(basis, kind, chosen)
            single += surplus
            if not surplus:
                found += _uneven(basis, kind, chosen)
    places = [_without_chance(basis, place) for place in _by_place(basis, single)]
    found += _alike([place for place in places if not _is_chance(basis, place)])
    return [hypothesis for hypothesis in found if hypothesis.saved_ns.sum() > 0]


def _without_chance(basis: Basis, hypothesis: Hypothesis) -> Hypothesis:
    """Without calls in which there is hardly anything to take off: a hypothesis is not about these."""
    call = basis.elements.call[hypothesis.chosen]
    saved = np.bincount(call, weights=hypothesis.saved_ns, minlength=basis.num_calls)
    is_about = saved >= _LEAST_OF_CALL * saved.max()
    kept = is_about[call]
    return replace(
        hypothesis,
        excess=np.where(is_about, hypothesis.excess, 0.0),
        chosen=hypothesis.chosen[kept],
        saved_ns=hypothesis.saved_ns[kept],
    )


def _log_spread(value: Floats, floor_ns: float = 0.0) -> float:
    """The spread of the logarithms of the lower part of values, which nothing makes longer."""
    if len(value) < 8:
        return 0.0
    lowest, low = np.quantile(np.log(np.maximum(value, 0.0) + max(floor_ns, 1.0)), [0.05, 0.3])
    return float(low - lowest) / 1.1205


def _slow_items(basis: Basis, kind: int, chosen: Ints, value: Floats) -> Hypothesis | None:
    """Elements that stand out by themselves all over the run; in `value` they are as usual afterwards."""
    if len(value) < 16:
        return None
    base = float(np.quantile(value, 0.3))
    spread = max(0.02, _log_spread(value))
    limit = np.exp(max(np.log(_ITEM_RATIO), _ITEM_SIGMAS * spread))
    limit = limit * np.maximum(_base_of_place(basis, chosen, value), max(base, 1.0))
    is_out = (value > limit) & (value - base > 0.1 * _FLOOR * basis.call_ns)
    if not _LEAST_SHARE <= is_out.mean() <= _MOST_SHARE:
        return None
    elements = basis.elements
    _, place = grouped(elements.first[chosen], elements.second[chosen])
    _, cell = grouped(elements.call[chosen], elements.first[chosen], elements.second[chosen])
    has_out = np.bincount(cell, weights=is_out) > 0
    sizes, outs = np.bincount(cell), np.bincount(cell, weights=is_out)
    can_be_mixed = has_out & (sizes > 1)
    call_place, _ = grouped(elements.call[chosen[is_out]], place[is_out])
    of_call = np.bincount(elements.call[chosen[is_out]][call_place])
    num_places = int(place.max()) + 1
    # In a call, most places have some: one that has them all by itself is a place that is slow.
    is_spread = np.median(of_call[of_call > 0]) >= max(2, _LEAST_PLACES * num_places)
    if not can_be_mixed.any() or not is_spread:
        return None
    if (
        outs[can_be_mixed] / sizes[can_be_mixed]
    ).mean() > 0.75 or can_be_mixed.sum() < 0.5 * has_out.sum():
        return None
    usual = float(value[~is_out].mean())
    mean = float(value[is_out].mean())
    excess = np.zeros(basis.num_calls)
    excess[np.unique(elements.call[chosen[is_out]])] = np.log(mean / max(usual, 1.0))
    saved = value[is_out] * (1 - usual / mean)
    value[is_out] -= saved
    return Hypothesis(
        "items",
        (Place(ALL, ALL),),
        frozenset([kind]),
        excess,
        chosen[is_out],
        saved,
        _period(elements.turn[chosen[is_out]]),
    )


def _base_of_place(basis: Basis, chosen: Ints, value: Floats) -> Floats:
    """The largest of low quantiles: of the element's call, of its place, and of its place in its call. All of a slow
    call is slow, and all of a slow block."""
    elements = basis.elements
    cells = (elements.call[chosen], elements.first[chosen], elements.second[chosen])
    base = np.zeros(len(value))
    for columns in (cells[:1], cells[1:], cells):
        _, group = grouped(*columns)
        sizes = np.bincount(group)
        order = np.lexsort((value, group))
        low = value[order][np.cumsum(sizes) - sizes + (sizes * 3) // 10]
        base = np.where(sizes[group] >= 4, np.maximum(base, low[group]), base)
    return base


def _period(turns: Ints) -> int:
    """n where it is every n-th, else 0."""
    for period in range(2, 65):
        if (turns % period == turns[0] % period).all():
            best = period
            while best * 2 <= 64 and (turns % (best * 2) == turns[0] % (best * 2)).all():
                best *= 2
            return best
    return 0


def _slow_places(
    basis: Basis, kind: int, chosen: Ints, value: Floats, floor_ns: float
) -> list[Hypothesis]:
    """The excesses of a class, each as a hypothesis."""
    elements = basis.elements
    if len(chosen) < 2:
        return []
    cells, cell = cells_of(
        elements.call[chosen], elements.first[chosen], elements.second[chosen], value
    )
    spread = _log_spread(value, floor_ns / float(cells.count.mean()))
    excesses = find_excesses(cells, floor_ns, basis.num_calls, spread)
    found = []
    for atom in excesses.atoms:
        saved = _saved(cells, cell, value, atom, excesses.usual_ns, floor_ns)
        # Slow items were taken out of `value`; those of a slow place are slow twice.
        saved *= elements.value_ns[chosen] / np.maximum(value, 1e-9)
        found += _slow(basis, kind, atom, Place(atom.first, atom.second), chosen, saved, cell)
    return found


def _slow(
    basis: Basis, kind: int, atom: Atom, place: Place, chosen: Ints, saved: Floats, cell: Ints
) -> list[Hypothesis]:
    """The hypothesis of an atom, unless it is too small in every cell to be looked at."""
    least = _LEAST_SAVED[basis.kinds[kind].family] * basis.call_ns
    if np.bincount(cell, weights=saved).max() < least:
        return []
    excess = np.where(atom.calls, atom.excess, 0.0)
    is_in = saved > 0
    return [Hypothesis("slow", (place,), frozenset([kind]), excess, chosen[is_in], saved[is_in])]


def _slow_links(basis: Basis, kind: int, chosen: Ints, floor_ns: float) -> list[Hypothesis]:
    """Links whose transfers take longer, as seen where a wait was held up by one. What is known of the others is
    the most that they can have taken; they are as slow as their link where it is so in most calls."""
    elements = basis.elements
    _, link = grouped(elements.call[chosen], elements.first[chosen], elements.second[chosen])
    is_seen, seen_ns = elements.is_seen[chosen], _like_one_region(basis, chosen)
    count = int(link.max(initial=-1)) + 1
    has_seen = np.bincount(link, weights=is_seen, minlength=count) > 0
    least = np.full(count, np.inf)
    np.minimum.at(least, link, seen_ns)
    is_bound = ~has_seen[link] & (seen_ns == least[link])
    counts = is_seen | (is_bound if has_seen.mean() < 0.5 else np.zeros(len(link), dtype=bool))
    if counts.sum() < 2:
        return []
    part, seen_ns = chosen[counts], seen_ns[counts]
    bounds = seen_ns[~elements.is_seen[part]]
    if len(bounds):
        # The best bound holds for all links alike.
        seen_ns = np.where(
            elements.is_seen[part], seen_ns, np.minimum(seen_ns, np.quantile(bounds, 0.05))
        )
    cells, cell = cells_of(
        elements.call[part], elements.first[part], elements.second[part], seen_ns
    )
    spread = _log_spread(seen_ns[elements.is_seen[part]], floor_ns / float(cells.count.mean()))
    excesses = find_excesses(cells, floor_ns, basis.num_calls, spread or _LINK_SPREAD)
    found = []
    for atom in excesses.atoms:
        value = elements.value_ns[part]
        saved = _saved(cells, cell, seen_ns, atom, excesses.usual_ns, floor_ns)
        share = np.minimum(1.0, saved / np.maximum(seen_ns, 1e-9))
        saved = np.where(elements.is_seen[part], value * share, 0.0)
        usual_share = float(np.median(share[saved > 0])) if (saved > 0).any() else 0.0
        hidden = _hidden(basis, cells, atom, chosen[~is_seen])
        saved_hidden = usual_share * elements.value_ns[hidden]
        found += _slow(
            basis,
            kind,
            atom,
            _place(atom, cells),
            np.r_[part, hidden],
            np.r_[saved, saved_hidden],
            np.r_[cell, np.full(len(hidden), int(cell.max()) + 1)],
        )
    return found


def _like_one_region(basis: Basis, chosen: Ints) -> Floats:
    """What transfers took, as if all were of one region: against what is usual in their own."""
    elements = basis.elements
    seen_ns, is_seen = elements.seen_ns[chosen], elements.is_seen[chosen]
    region = basis.graph.spans.region[elements.at[chosen]]
    if not is_seen.any():
        return seen_ns
    overall = max(1.0, float(np.quantile(seen_ns[is_seen], 0.3)))
    scaled = seen_ns.copy()
    for number in np.unique(region).tolist():
        here = (region == number) & is_seen
        if here.sum() >= 8:
            usual = max(1.0, float(np.quantile(seen_ns[here], 0.3)))
            scaled[region == number] *= overall / usual
    return scaled


def _hidden(basis: Basis, cells: Cells, atom: Atom, chosen: Ints) -> Ints:
    """Of transfers that nobody had to wait for, those on the links of an atom: in its calls, or, where it is in most
    calls, in all."""
    elements = basis.elements
    everywhere = Atom(atom.first, atom.second, np.ones_like(atom.calls), atom.excess)
    calls = np.unique(cells.call[_members(cells, everywhere)])
    is_usual = atom.calls[calls].mean() >= 0.7
    is_in = np.ones(len(chosen), dtype=bool) if is_usual else atom.calls[elements.call[chosen]]
    for wanted, column in ((atom.first, elements.first), (atom.second, elements.second)):
        if wanted != ALL:
            is_in = is_in & (column[chosen] == wanted)
    hidden: Ints = chosen[is_in]
    return hidden


def _place(atom: Atom, cells: Cells) -> Place:
    """All links out of a rank that has one are this link."""
    first, second = atom.first, atom.second
    if first != ALL and second == ALL:
        others = np.unique(cells.second[cells.first == first])
        second = int(others[0]) if len(others) == 1 else ALL
    elif second != ALL and first == ALL:
        others = np.unique(cells.first[cells.second == second])
        first = int(others[0]) if len(others) == 1 else ALL
    return Place(first, second, True)


def _members(cells: Cells, atom: Atom) -> Bools:
    is_in = atom.calls[cells.call]
    if atom.first != ALL:
        is_in = is_in & (cells.first == atom.first)
    if atom.second != ALL:
        is_in = is_in & (cells.second == atom.second)
    return is_in


def _saved(
    cells: Cells, cell: Ints, value: Floats, atom: Atom, usual_ns: float, floor_ns: float
) -> Floats:
    """What to take off every element so that its cell is rid of the excess of an atom.

    The noise of the cell stays: its time is scaled, not set. Where a few elements account for most of the excess
    it is taken from those.
    """
    is_in = _members(cells, atom)
    left = (cells.sum_ns + floor_ns) * np.exp(-atom.excess[cells.call]) - floor_ns
    excess = np.where(is_in, np.maximum(0.0, cells.sum_ns - np.maximum(left, 0.0)), 0.0)
    beyond = np.where(value > _OUTLIER_RATIO * usual_ns, value - usual_ns, 0.0)
    beyond_of_cell = np.bincount(cell, weights=beyond, minlength=len(cells.count))
    count_beyond = np.bincount(cell, weights=beyond > 0, minlength=len(cells.count))
    others = cells.sum_ns - np.bincount(
        cell, weights=np.where(beyond > 0, value, 0.0), minlength=len(cells.count)
    )
    are_usual = others < _UNEVEN * usual_ns * (cells.count - count_beyond)
    few = is_in & (beyond_of_cell >= _BY_OUTLIERS * excess) & are_usual
    share_of_beyond = excess / np.maximum(beyond_of_cell, 1e-9)
    share_of_all = excess / np.maximum(cells.sum_ns, 1e-9)
    saved = np.where(few[cell], beyond * share_of_beyond[cell], value * share_of_all[cell])
    return np.minimum(saved, value)


def _surplus(basis: Basis, kind: int, chosen: Ints) -> list[Hypothesis]:
    """Places that have more elements of a class than their likes; and ranks for which others have more."""
    elements = basis.elements
    usual = float(np.median(elements.value_ns[chosen]))
    found: list[Hypothesis] = []
    if len(np.unique(elements.first[chosen])) < len(np.unique(basis.graph.launch_rank)):
        # What only some of the ranks do is shared out by role: the inner ones of a tree have children.
        return found
    peer = basis.graph.spans.peer[elements.at[chosen]]
    has_peer = peer >= 0
    ways = [
        (elements.second[chosen], np.ones(len(chosen), dtype=bool), False),
        (peer, has_peer, True),
    ]
    for second, is_in, is_peer in ways:
        if not is_in.any():
            continue
        part = chosen[is_in]
        count, cell = cells_of(
            elements.call[part], elements.first[part], second[is_in], np.full(len(part), usual)
        )
        cells = Cells(
            count.call, count.first, count.second, np.ones(len(count.count)), count.sum_ns
        )
        excesses = find_excesses(cells, _FLOOR * basis.call_ns, basis.num_calls, 0.0, 0.5)
        for atom in excesses.atoms:
            if is_peer and (atom.first != ALL or atom.second == ALL):
                continue
            is_in_cell = _members(cells, atom)
            # Five items cannot be dealt out over four blocks so that none has two.
            even = np.ceil(count.count.mean())
            if count.count[is_in_cell].mean() <= even:
                continue
            is_more = is_in_cell[cell]
            chosen_more = part[is_more]
            share = _last_ones(basis, chosen_more, second[is_in][is_more], atom)
            part_and_gaps, share = _with_gaps(basis, chosen_more, share)
            saved = elements.value_ns[part_and_gaps] * share
            place = Place(atom.second, ALL) if is_peer else Place(atom.first, atom.second)
            excess = np.where(atom.calls, atom.excess, 0.0)
            kinds = frozenset([kind])
            found.append(Hypothesis("surplus", (place,), kinds, excess, part_and_gaps, saved))
    return found


def _last_ones(basis: Basis, chosen: Ints, second: Ints, atom: Atom) -> Floats:
    """1 for the items of every track that are beyond the usual number, which are the last ones; else 0."""
    elements = basis.elements
    track = basis.graph.spans.track[elements.at[chosen]]
    _, group = grouped(track, second)
    order = np.lexsort((elements.turn[chosen], group))
    sizes = np.bincount(group)
    turn = np.empty(len(chosen), dtype=np.int64)
    turn[order] = np.arange(len(chosen)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept = sizes[group] * np.exp(-atom.excess[elements.call[chosen]])
    return np.clip(turn + 1 - kept, 0.0, 1.0)


def _with_gaps(basis: Basis, chosen: Ints, share: Floats) -> tuple[Ints, Floats]:
    """Spans, and the gaps before them: an item that is not there takes no time between items either."""
    gaps = basis.gap_of_span[basis.elements.at[chosen]]
    return np.r_[chosen, gaps[gaps >= 0]], np.r_[share, share[gaps >= 0]]


def _uneven(basis: Basis, kind: int, chosen: Ints) -> list[Hypothesis]:
    """A region dealt out evenly over all blocks of its launches, idle ones included: by numbers of elements, so that
    what chance makes longer stays."""
    elements, spans = basis.elements, basis.graph.spans
    at = elements.at[chosen]
    usual = float(elements.value_ns[chosen].mean())
    examples, cell = grouped(spans.launch[at], spans.block[at])
    launch = spans.launch[at][examples]
    count = np.bincount(cell).astype(float)
    total = np.bincount(launch, weights=count, minlength=len(spans.launch_blocks))
    blocks = spans.launch_blocks[launch]
    even = np.ceil(total[launch] / blocks)
    has_many = count > _UNEVEN * even
    if usual * float((count - even)[has_many].max(initial=0.0)) < 3 * _FLOOR * basis.call_ns:
        return []
    factor = np.minimum(1.0, even / count)[cell]
    saved = elements.value_ns[chosen] * (1 - factor)
    excess = np.zeros(basis.num_calls)
    np.maximum.at(excess, elements.call[chosen], -np.log(factor))
    is_in = saved > 0
    return [
        Hypothesis(
            "uneven", (Place(ALL, ALL),), frozenset([kind]), excess, chosen[is_in], saved[is_in]
        )
    ]


def _by_place(basis: Basis, single: list[Hypothesis]) -> list[Hypothesis]:
    """One hypothesis per place and what is wrong with it: in all of its classes together."""
    groups: dict[tuple[str, Place], list[Hypothesis]] = {}
    for hypothesis in single:
        groups.setdefault((hypothesis.what, hypothesis.places[0]), []).append(hypothesis)
    united = [_union(members, members[0].places) for members in groups.values()]
    return _absorbed(basis, united)


def _is_chance(basis: Basis, hypothesis: Hypothesis) -> bool:
    """Single elements that took somewhat longer, in few calls."""
    saved = hypothesis.saved_ns
    calls = len(np.unique(basis.elements.call[hypothesis.chosen]))
    effective = float(saved.sum() ** 2 / (saved**2).sum())
    if effective > 3 * calls or calls >= max(3, _OFTEN * basis.num_calls):
        return False
    largest = int(saved.argmax())
    value = float(basis.elements.value_ns[hypothesis.chosen[largest]])
    wanted = _ONCE_RATIO if effective <= 1.5 * calls else _FEW_RATIO
    return value < wanted * (value - float(saved[largest]))


def _union(members: list[Hypothesis], places: tuple[Place, ...]) -> Hypothesis:
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


def _contains(outer: Place, inner: Place) -> bool:
    return (
        outer.is_link == inner.is_link
        and outer != inner
        and outer.first in (ALL, inner.first)
        and outer.second in (ALL, inner.second)
    )


def _absorbed(basis: Basis, united: list[Hypothesis]) -> list[Hypothesis]:
    """A block of a slow rank that stands out in other classes by about as much belongs to the rank."""
    parts: dict[int, list[Hypothesis]] = {i: [] for i in range(len(united))}
    for inner in united:
        for i, outer in enumerate(united):
            if inner.what != outer.what or not _contains(outer.places[0], inner.places[0]):
                continue
            both = inner.calls & outer.calls
            is_within = both.sum() >= 0.7 * inner.calls.sum() and not (inner.kinds & outer.kinds)
            families = [{basis.kinds[kind].family for kind in h.kinds} for h in (inner, outer)]
            is_within &= len(inner.kinds) <= len(outer.kinds) and bool(families[0] & families[1])
            if (
                is_within
                and abs(inner.excess.max() - outer.excess.max()) < _ALIKE * outer.excess.max()
            ):
                parts[i].append(inner)
                break
    absorbed = {id(inner) for inners in parts.values() for inner in inners}
    return [
        _union([outer, *parts[i]], outer.places)
        for i, outer in enumerate(united)
        if id(outer) not in absorbed
    ]


def _shape(hypothesis: Hypothesis) -> tuple[str, bool, bool, bool]:
    place = hypothesis.places[0]
    return hypothesis.what, place.is_link, place.first == ALL, place.second == ALL


def _are_alike(one: Hypothesis, other: Hypothesis) -> bool:
    """The same classes, about as much, in the same calls; or in calls of their own, as of what moves."""
    if _shape(one) != _shape(other):
        return False
    shared = len(one.kinds & other.kinds) / len(one.kinds | other.kinds)
    both, either = (one.calls & other.calls).sum(), (one.calls | other.calls).sum()
    heights = [np.median(h.excess[h.calls]) for h in (one, other)]
    if shared < 0.5 or abs(heights[0] - heights[1]) > _ALIKE * max(heights):
        return False
    is_apart = both == 0 and max(one.calls.sum(), other.calls.sum()) <= 0.5 * len(one.calls)
    is_near = any(
        a == b
        for a, b in (
            (one.places[0].first, other.places[0].first),
            (one.places[0].second, other.places[0].second),
        )
    )
    return bool(is_apart or (is_near and both >= 0.6 * either))


def _alike(united: list[Hypothesis]) -> list[Hypothesis]:
    """Places that are alike are one hypothesis: ranks 4 to 7, block 3 of some ranks, a straggler that moves."""
    groups: list[list[Hypothesis]] = []
    for hypothesis in sorted(united, key=lambda h: -float(h.saved_ns.sum())):
        for group in groups:
            if all(_are_alike(member, hypothesis) for member in group):
                group.append(hypothesis)
                break
        else:
            groups.append([hypothesis])
    return [
        _union(
            group, tuple(sorted((m.places[0] for m in group), key=lambda p: (p.first, p.second)))
        )
        for group in groups
    ]
