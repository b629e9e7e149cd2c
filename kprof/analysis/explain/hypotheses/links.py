"""Links whose transfers take longer than those of other links."""

from __future__ import annotations

from typing import Final

import numpy as np

from kprof.analysis.explain.elements import Family
from kprof.analysis.explain.excess import ALL, Atom, Cells, cells_of, find_excesses, grouped
from kprof.analysis.explain.hypotheses.atoms import log_spread, members, saved_by, slow_hypothesis
from kprof.analysis.explain.hypotheses.model import Basis, Hypothesis, OneClass, Place
from kprof.analysis.explain.spans import Floats, Ints

# The spread of transfers' logarithms where too few were seen to tell.
_LINK_SPREAD: Final = 0.2


def slow_links(one: OneClass) -> list[Hypothesis]:
    """Links whose transfers take longer, as seen where a wait was held up by one. What is known of the others is
    the most that they can have taken; they are as slow as their link where it is so in most calls."""
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
    bounds = seen_ns[~elements.is_seen[part]]
    if len(bounds):
        # The best bound holds for all links alike.
        seen_ns = np.where(
            elements.is_seen[part], seen_ns, np.minimum(seen_ns, np.quantile(bounds, 0.05))
        )
    cells, cell = cells_of(
        elements.call[part], elements.first[part], elements.second[part], seen_ns
    )
    spread = log_spread(seen_ns[elements.is_seen[part]], floor_ns / float(cells.count.mean()))
    excesses = find_excesses(cells, floor_ns, basis.num_calls, spread or _LINK_SPREAD)
    found = []
    for atom in excesses.atoms:
        value = elements.value_ns[part]
        saved = saved_by(cells, cell, seen_ns, atom, excesses.usual_ns, floor_ns)
        share = np.minimum(1.0, saved / np.maximum(seen_ns, 1e-9))
        saved = np.where(elements.is_seen[part], value * share, 0.0)
        usual_share = float(np.median(share[saved > 0])) if (saved > 0).any() else 0.0
        hidden = _hidden(basis, cells, atom, chosen[~is_seen])
        saved_hidden = usual_share * elements.value_ns[hidden]
        found += slow_hypothesis(
            one,
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
    calls = np.unique(cells.call[members(cells, everywhere)])
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
