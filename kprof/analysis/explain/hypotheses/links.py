"""Links whose transfers take longer than those of other links."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from kprof.analysis.explain.excess import ALL, LOW, Atom, Cells, cells_of_elements, find_excesses
from kprof.analysis.explain.hypotheses.atoms import log_spread, saved_by, slow_hypothesis
from kprof.analysis.explain.hypotheses.model import ALIKE, Basis, Hypothesis, OneClass, Place
from kprof.analysis.replay.columns import grouped, grouped_median
from kprof.analysis.replay.elements import Elements, Family
from kprof.analysis.replay.spans import Floats, Ints

# The spread of transfers' logarithms where too few were seen to tell.
_LINK_SPREAD: Final = 0.2
# From so many transfers on, a link tells how far apart they are.
_ENOUGH: Final = 4
_LEAST: Final = 0.05
_IN_MOST_CALLS: Final = 0.7
# The clocks of a link may be off one way, and those of the link that it is compared with the other
# way.
_TWICE: Final = 2.0


def slow_links(one: OneClass) -> list[Hypothesis]:
    """Links whose transfers take longer, as seen where a wait was held up by one. What is known of
    the others is the most that they can have taken; they are as slow as their link where it is so
    in most calls."""
    if one.family is not Family.TRAVEL:
        return []
    basis, chosen, floor_ns = one.basis, one.chosen, max(one.floor_ns, one.bound_ns)
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
    seen_ns = np.minimum(seen_ns, _best_ns(elements, part, seen_ns))
    cells, cell = cells_of_elements(elements, part, seen_ns)
    spread = _spread(elements, part, seen_ns, floor_ns / float(cells.count.mean()))
    excesses = find_excesses(cells, floor_ns, basis.num_calls, spread, _low(cells))
    found = []
    for atom in _whole(elements, part, excesses.atoms):
        atom = _wherever_it_can_be(basis, chosen, atom, excesses.usual_ns)
        saved = saved_by(cells, cell, seen_ns, atom, excesses.usual_ns, floor_ns)
        share = np.minimum(1.0, saved / np.maximum(seen_ns, 1e-9))
        saved = np.where(elements.is_seen[part], elements.value_ns[part] * share, 0.0)
        if (saved > 0).any() and float(np.median(saved[saved > 0])) < _TWICE * one.bound_ns:
            continue
        usual_share = float(np.median(share[saved > 0])) if (saved > 0).any() else 0.0
        hidden = on_links_of(atom, elements, chosen[~is_seen])
        found += slow_hypothesis(
            one,
            atom,
            _place(atom, cells),
            np.r_[part, hidden],
            np.r_[saved, usual_share * elements.value_ns[hidden]],
            np.r_[cell, np.full(len(hidden), int(cell.max()) + 1)],
        )
    return found


def _whole(elements: Elements, part: Ints, atoms: list[Atom]) -> list[Atom]:
    """All links into a rank, or out of it, in place of single ones, where all of these that were
    seen are slow alike: of the others nothing is known."""
    seen = part[elements.is_seen[part]]
    links = set(zip(elements.first[seen].tolist(), elements.second[seen].tolist(), strict=True))
    for end in (0, 1):
        for rank in sorted({_link(atom)[end] for atom in atoms} - {ALL}):
            single = [a for a in atoms if _link(a)[end] == rank and ALL not in _link(a)]
            is_each = {_link(a) for a in single} == {link for link in links if link[end] == rank}
            if len(single) > 1 and is_each and _are_alike(single):
                others = [a for a in atoms if _link(a)[end] != rank or ALL in _link(a)]
                first, second = (rank, ALL) if end == 0 else (ALL, rank)
                atoms = [*others, _together(single, first, second)]
    return atoms


def _link(atom: Atom) -> tuple[int, int]:
    return atom.first, atom.second


def _are_alike(atoms: list[Atom]) -> bool:
    heights = [atom.height for atom in atoms]
    return max(heights) - min(heights) <= ALIKE * max(heights)


def _together(atoms: list[Atom], first: int, second: int) -> Atom:
    calls = np.any([atom.calls for atom in atoms], axis=0)
    return Atom(first, second, calls, np.max([atom.excess for atom in atoms], axis=0))


def _low(cells: Cells) -> float:
    """The quantile of links that is their level: where one rank has most of the links, no link of
    that rank, so that they may all be slow."""
    most = max(np.bincount(column).max() for column in (cells.first, cells.second))
    return min(LOW, max(_LEAST, (1 - float(most) / len(cells.call)) / 2))


def on_links_of(atom: Atom, elements: Elements, transfers: Ints) -> Ints:
    """Those of these transfers that are on the links of an atom, in its calls."""
    is_on = atom.covers(elements.first[transfers], elements.second[transfers])
    return transfers[is_on & atom.calls[elements.call[transfers]]]


def _wherever_it_can_be(basis: Basis, chosen: Ints, atom: Atom, usual_ns: float) -> Atom:
    """A link that is slow in most calls that tell is slow in the others, too.

    In those nobody ever had to wait for it.
    """
    elements, height = basis.elements, atom.height
    on_it = chosen[atom.covers(elements.first[chosen], elements.second[chosen])]
    cannot_be = elements.seen_ns[on_it] < usual_ns * np.exp(height / 2)
    tells = np.zeros_like(atom.calls)
    tells[elements.call[on_it[elements.is_seen[on_it] | cannot_be]]] = True
    if not tells.any() or atom.calls[tells].mean() < _IN_MOST_CALLS:
        return atom
    calls = atom.calls | ~tells
    return replace(atom, calls=calls, excess=np.where(tells, atom.excess, height))


def _best_ns(elements: Elements, part: Ints, seen_ns: Floats) -> Floats:
    """No limit for transfers that were seen. The others took no more than the best bound of all,
    nor than the best link usually takes: what is only known to be less than something is no reason
    to call a link slow."""
    is_seen = elements.is_seen[part]
    if is_seen.all():
        return np.full(len(part), np.inf)
    best = float(np.quantile(seen_ns[~is_seen], 0.05))
    if is_seen.any():
        _, link = elements.links(part[is_seen])
        of_links = grouped_median(link, seen_ns[is_seen], int(link.max()) + 1)
        best = min(best, float(of_links.min()))
    return np.where(is_seen, np.inf, best)


def _like_one_region(basis: Basis, chosen: Ints) -> Floats:
    """What transfers took, as if all were of one region: against what is usual in their own.

    Where all of a region have one source or one destination, its links can only be compared with
    those of other regions.
    """
    elements = basis.elements
    seen_ns, is_seen = elements.seen_ns[chosen], elements.is_seen[chosen]
    region = basis.graph.spans.region[elements.at[chosen]]
    if not is_seen.any():
        return seen_ns
    overall = _usual_ns(elements, chosen, np.inf)
    scaled = seen_ns.copy()
    for number in np.unique(region).tolist():
        here = region == number
        ends = (elements.first[chosen[here]], elements.second[chosen[here]])
        if (here & is_seen).sum() >= 8 and min(len(np.unique(end)) for end in ends) > 1:
            scaled[here] *= overall / _usual_ns(elements, chosen[here], overall)
    return scaled


def _usual_ns(elements: Elements, chosen: Ints, otherwise: float) -> float:
    """What the better ones of links take. Where others were done within less, only slow ones were
    seen: then no more than those, and no more than `otherwise`."""
    seen_ns, is_seen = elements.seen_ns[chosen], elements.is_seen[chosen]
    _, link = elements.links(chosen)
    of_links = grouped_median(link[is_seen], seen_ns[is_seen], int(link.max()) + 1)
    usual = float(np.nanquantile(of_links, LOW, method="lower"))
    if not is_seen.all():
        most = float(np.quantile(seen_ns[~is_seen], _LEAST))
        usual = min(most, otherwise) if most < usual else usual
    return max(1.0, usual)


def _spread(elements: Elements, part: Ints, seen_ns: Floats, floor_ns: float) -> float:
    """The spread of the logarithm of transfers, each against what its link usually takes."""
    seen, seen_ns = part[elements.is_seen[part]], seen_ns[elements.is_seen[part]]
    if len(seen) == 0:
        return _LINK_SPREAD
    _, link = elements.links(seen)
    usual = grouped_median(link, seen_ns, int(link.max()) + 1)
    is_told = (np.bincount(link) >= _ENOUGH)[link]
    alike = seen_ns / np.maximum(1.0, usual[link]) * float(np.median(seen_ns))
    return log_spread(alike[is_told], floor_ns) or _LINK_SPREAD


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
