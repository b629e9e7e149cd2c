"""Places that have more elements than their likes: items beyond the usual number taken out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kprof.analysis.explain.excess import ALL, Atom, Cells, cells_of, find_excesses
from kprof.analysis.explain.hypotheses.atoms import members
from kprof.analysis.explain.hypotheses.model import FLOOR, Basis, Hypothesis, OneClass, Place, What
from kprof.analysis.replay.columns import grouped, turns_of
from kprof.analysis.replay.elements import Family
from kprof.analysis.replay.spans import Bools, Floats, Ints, Spans


def surplus(one: OneClass) -> list[Hypothesis]:
    """Places that have more elements of a class than their likes.

    And ranks for which others have more.
    """
    spans, elements = one.basis.graph.spans, one.basis.elements
    ranks = np.unique(elements.first[one.chosen])
    if one.family is not Family.OWN or len(ranks) < len(np.unique(one.basis.graph.launch_rank)):
        # What only some of the ranks do is shared out by role: the inner ones of a tree have
        # children.
        return []
    peer = spans.peer[elements.at[one.chosen]]
    # Others are not selected, or not recorded.
    is_here = np.isin(peer, one.basis.graph.launch_rank)
    found = _of_places(one, one.chosen, elements.second[one.chosen])
    return found + _of_peers(one, one.chosen[is_here], peer[is_here])


def _of_places(one: OneClass, part: Ints, block: Ints) -> list[Hypothesis]:
    """Ranks and blocks that have more; what others do with what these send goes with it."""
    found = []
    for atom, more in _places_with_more(one, part, block):
        items = part[more]
        share = _last_ones(one.basis, items, block[more], atom)
        there, share_there = _handled_elsewhere(one.basis, items, share)
        items, share = np.r_[items, there], np.r_[share, share_there]
        found.append(_without(one, Place(atom.first, atom.second), atom, items, share))
    return found


def _of_peers(one: OneClass, part: Ints, peer: Ints) -> list[Hypothesis]:
    """Ranks for which all others have more: all that is done for a peer, wherever it is done."""
    found = []
    for atom, more in _places_with_more(one, part, peer):
        if atom.first == ALL and atom.second != ALL:
            share = _last_ones(one.basis, part[more], peer[more], atom)
            found.append(_without(one, Place(atom.second, ALL), atom, part[more], share))
    return found


def _places_with_more(one: OneClass, part: Ints, second: Ints) -> Iterator[tuple[Atom, Bools]]:
    """Groups of (rank, second) that have more elements, and which of the elements are theirs."""
    if not len(part):
        return
    elements = one.basis.elements
    usual = float(np.median(elements.value_ns[one.chosen]))
    count, cell = cells_of(
        elements.call[part], elements.first[part], second, np.full(len(part), usual)
    )
    cells = Cells(count.call, count.first, count.second, np.ones(len(count.count)), count.sum_ns)
    floor_ns = FLOOR * one.basis.call_ns
    atoms = find_excesses(cells, floor_ns, one.basis.num_calls, 0.0, 0.5).atoms
    for atom in (_as_counted(atom, atoms, count) for atom in atoms):
        is_in_cell = members(cells, atom)
        # Five items cannot be dealt out over four blocks so that none has two.
        if count.count[is_in_cell].mean() > np.ceil(count.count.mean()):
            yield atom, is_in_cell[cell]


def _as_counted(atom: Atom, atoms: list[Atom], cells: Cells) -> Atom:
    """An atom of a whole rank, or of a block of all ranks, with its excess over the mean of the
    others that have no atom.

    Cells are compared with a low quantile of all, and where places have two or three items each,
    that is far below the mean.
    """
    if (atom.first == ALL) == (atom.second == ALL):
        return atom
    is_of_rank = atom.second == ALL
    likes = [a for a in atoms if (a.second == ALL, a.first == ALL) == (is_of_rank, not is_of_rank)]
    number = cells.first if is_of_rank else cells.second
    own = _mean_sum(cells, number, members(cells, atom))
    others = _mean_sum(cells, number, ~np.any([members(cells, like) for like in likes], axis=0))
    if own <= others or others == 0:
        return atom
    shift = float(np.log(own / others)) - atom.height
    return replace(atom, excess=np.where(atom.calls, atom.excess + shift, 0.0))


def _mean_sum(cells: Cells, number: Ints, is_meant: Bools) -> float:
    """The mean, over calls and numbers, of the items that a number has in a call; 0 without any."""
    if not is_meant.any():
        return 0.0
    _, group = grouped(cells.call[is_meant], number[is_meant])
    return float(np.bincount(group, weights=cells.count[is_meant]).mean())


def _without(one: OneClass, place: Place, atom: Atom, items: Ints, share: Floats) -> Hypothesis:
    chosen, share = _with_gaps(one.basis, items, share)
    saved = one.basis.elements.value_ns[chosen] * share
    excess = np.where(atom.calls, atom.excess, 0.0)
    return one.hypothesis(What.SURPLUS, (place,), excess, chosen, saved)


def _handled_elsewhere(basis: Basis, items: Ints, share: Floats) -> tuple[Ints, Floats]:
    """What others do with what items send: the wait, what always follows, and the transfer."""
    spans, at = basis.graph.spans, basis.elements.at[items]
    wait_of = np.full(len(spans), -1, dtype=np.int64)
    wait_of[spans.send[spans.send >= 0]] = np.flatnonzero(spans.send >= 0)
    is_sent = (wait_of[at] >= 0) & (share > 0)
    waits, share = wait_of[at[is_sent]], share[is_sent]
    lengths = _unit_lengths(spans)[spans.region[waits]]
    offsets = np.arange(int(lengths.max(initial=0)))
    unit = waits[:, None] + offsets
    is_in = (offsets < lengths[:, None]) & (unit < len(spans))
    is_in &= spans.track[np.minimum(unit, len(spans) - 1)] == spans.track[waits][:, None]
    done, of_done = unit[is_in], np.broadcast_to(share[:, None], unit.shape)[is_in]
    elements = np.r_[basis.of_span[Family.OWN][done], basis.of_span[Family.TRAVEL][waits]]
    shares = np.r_[of_done, share]
    return elements[elements >= 0], shares[elements >= 0]


def _unit_lengths(spans: Spans) -> Ints:
    """By region: from one wait of it to the next one of the track, as it is most often.

    1 where none has a next.
    """
    lengths = np.ones(len(spans.region_names), dtype=np.int64)
    for region in np.unique(spans.region[spans.send >= 0]).tolist():
        waits = np.flatnonzero((spans.region == region) & (spans.send >= 0))
        steps = np.diff(waits)[np.diff(spans.track[waits]) == 0]
        if len(steps):
            lengths[region] = int(np.bincount(steps).argmax())
    return lengths


def _last_ones(basis: Basis, chosen: Ints, second: Ints, atom: Atom) -> Floats:
    """1 for the items of every track that are beyond the usual number, which are the last ones.

    Else 0.
    """
    elements = basis.elements
    track = basis.graph.spans.track[elements.at[chosen]]
    _, group = grouped(track, second)
    turn = turns_of(group, elements.turn[chosen])
    kept = np.bincount(group)[group] * np.exp(-atom.excess[elements.call[chosen]])
    return np.clip(turn + 1 - kept, 0.0, 1.0)


def _with_gaps(basis: Basis, chosen: Ints, share: Floats) -> tuple[Ints, Floats]:
    """Elements, and the gaps before their spans: an item that is not there needs no gap."""
    is_own = basis.elements.family[chosen] == Family.OWN
    gaps = basis.of_span[Family.GAP][basis.elements.at[chosen[is_own]]]
    return np.r_[chosen, gaps[gaps >= 0]], np.r_[share, share[is_own][gaps >= 0]]
