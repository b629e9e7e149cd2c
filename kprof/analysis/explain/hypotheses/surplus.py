"""Places that have more elements than their likes: items beyond the usual number taken out."""

from __future__ import annotations

import numpy as np

from kprof.analysis.explain.elements import Family
from kprof.analysis.explain.excess import ALL, Atom, Cells, cells_of, find_excesses, grouped
from kprof.analysis.explain.hypotheses.atoms import members
from kprof.analysis.explain.hypotheses.model import FLOOR, Basis, Hypothesis, OneClass, Place, What
from kprof.analysis.explain.spans import Floats, Ints


def surplus(one: OneClass) -> list[Hypothesis]:
    """Places that have more elements of a class than their likes; and ranks for which others have more."""
    if one.family is not Family.OWN:
        return []
    basis, chosen = one.basis, one.chosen
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
        excesses = find_excesses(cells, FLOOR * basis.call_ns, basis.num_calls, 0.0, 0.5)
        for atom in excesses.atoms:
            if is_peer and (atom.first != ALL or atom.second == ALL):
                continue
            is_in_cell = members(cells, atom)
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
            kinds = frozenset([one.kind])
            found.append(Hypothesis(What.SURPLUS, (place,), kinds, excess, part_and_gaps, saved))
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
