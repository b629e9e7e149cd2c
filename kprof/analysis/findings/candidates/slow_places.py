"""Places that take longer than comparable ones for the same work, or do nothing for longer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kprof.analysis.findings.candidates.candidate import Candidate, Comparable, Place
from kprof.analysis.findings.candidates.excess import (
    ALL,
    CellIndex,
    Cells,
    Deviation,
    cells_of,
    cells_of_elements,
    find_deviations,
    members,
    sizes_of_calls,
)
from kprof.analysis.findings.thresholds import (
    BY_OUTLIERS,
    CELL,
    FEW,
    GROUP,
    MOSTLY_WITHIN,
    OUTLIER_RATIO,
    UNEVEN,
)
from kprof.analysis.replay.columns import grouped, grouped_median
from kprof.analysis.replay.elements import Family
from kprof.analysis.replay.spans import Floats, Ints


def slow_places(one: Comparable) -> list[Candidate]:
    """The excesses of a class, each as a candidate."""
    chosen, value, floor_ns = one.chosen, one.value_ns, one.floor_ns
    elements = one.basis.elements
    if len(chosen) < 2 or one.family is Family.TRAVEL:
        return []
    value = value / _sizes_of_turns(one)
    cells, cell = cells_of_elements(elements, chosen, value)
    size, growth = sizes_of_calls(cells, one.basis.num_calls)
    place_of = _places(one)
    found = []
    if growth is not None:
        # Of all elements alike: none of them is slow beside the others of its call.
        saved = saved_by(cells, cell, value, growth, float("inf"), floor_ns)
        found += slow_candidate(one, growth, place_of(growth), chosen, saved, cell)
    cells, value = replace(cells, sum_ns=cells.sum_ns / size), value / size[cell]
    spread = log_spread(value, floor_ns / float(cells.count.mean()))
    deviations, usual_ns = find_deviations(cells, floor_ns, one.basis.num_calls, spread)
    index = CellIndex(cells, cell)
    for deviation in deviations:
        part, here, cell_here = index.of(deviation)
        value_here = value[here]
        saved = saved_by(part, cell_here, value_here, deviation, usual_ns, floor_ns)
        if deviation.second != ALL and one.family is Family.OWN:
            track = one.basis.graph.spans.track[elements.at[chosen[here]]]
            saved = _off_slow_warps(track, cell_here, value_here, saved, usual_ns)
        # Slow items were taken out of `value`; those of a slow place are slow twice.
        saved *= elements.value_ns[chosen[here]] / np.maximum(value_here, 1e-9)
        found += slow_candidate(one, deviation, place_of(deviation), chosen[here], saved, cell_here)
    return found


def _sizes_of_turns(one: Comparable) -> Floats:
    """By element, how many times as long those at its turn of a track take as at the shortest turn:
    an inner rank of a tree has more merges, each of a longer list. 1 unless tracks have different
    numbers of elements, or where turns of several places do not differ."""
    elements, chosen, same = one.basis.elements, one.chosen, np.ones(len(one.chosen))
    if one.family is not Family.OWN:
        return same
    num_of_track = np.bincount(one.basis.graph.spans.track[elements.at[chosen]])
    if np.ptp(num_of_track[num_of_track > 0]) == 0:
        return same
    turn = elements.turn[chosen]
    examples, _ = grouped(turn, elements.first[chosen])
    is_known = np.bincount(turn[examples]) > 1
    length = grouped_median(turn, one.value_ns, len(is_known))
    shortest = max(float(length[is_known].min(initial=np.inf)), 1.0)
    if not is_known.any() or length[is_known].max() < UNEVEN * shortest:
        return same
    is_usual = abs(np.log(np.maximum(one.value_ns, 1.0) / np.maximum(length[turn], 1.0))) < GROUP
    return np.maximum(length[turn] / shortest, 1.0) if is_usual.mean() > 1 - FEW else same


def _off_slow_warps(
    track: Ints, cell: Ints, value: Floats, saved: Floats, usual_ns: float
) -> Floats:
    """What is saved is taken off those warps of a block that take longer, where the others surely
    do not."""
    examples, number = grouped(cell, track)
    of, count = cell[examples], np.bincount(number)
    factor = np.bincount(number, weights=value) / count / max(usual_ns, 1.0)
    is_slow = factor > np.exp(CELL)
    of_others = np.zeros(len(of))
    np.maximum.at(of_others, of, np.where(is_slow, 0.0, factor))
    excess = np.where(is_slow, (factor - 1) * usual_ns * count, 0.0)
    beyond = np.bincount(of, weights=excess, minlength=len(of))
    total = np.bincount(cell, weights=saved, minlength=len(of))
    are_usual = (of_others > 0) & (of_others < np.exp(GROUP))
    is_told = are_usual & (beyond >= BY_OUTLIERS * total) & (beyond > 0)
    part = np.minimum(1.0, total / np.maximum(beyond, 1e-9))[cell]
    of_slow = np.where(is_slow, 1 - 1 / np.maximum(factor, 1.0), 0.0)[number] * value * part
    return np.where(is_told[cell], of_slow, saved)


def slow_processors(one: Comparable) -> list[Candidate]:
    """SMs (CUs) on which whatever runs there takes longer; where blocks keep to theirs, blocks say
    the same."""
    elements, spans = one.basis.elements, one.basis.graph.spans
    processor = spans.processor[elements.at[one.chosen]]
    rank, block = elements.first[one.chosen], elements.second[one.chosen]
    num_pairs = len(grouped(rank, processor)[0])
    if (processor < 0).any() or len(grouped(rank, processor, block)[0]) == num_pairs:
        return []
    cells, cell = cells_of(elements.call[one.chosen], rank, processor, one.value_ns)
    spread = log_spread(one.value_ns, one.floor_ns / float(cells.count.mean()))
    deviations, usual_ns = find_deviations(cells, one.floor_ns, one.basis.num_calls, spread)
    found = []
    for deviation in deviations:
        if deviation.first == ALL or deviation.second == ALL or deviation.calls.sum() < 2:
            continue
        saved = saved_by(cells, cell, one.value_ns, deviation, usual_ns, one.floor_ns)
        is_here = (rank == deviation.first) & (processor == deviation.second)
        if _is_of_one_block(block[is_here], one.value_ns[is_here], saved[is_here]):
            continue
        place = Place(deviation.first, deviation.second, is_processor=True)
        found += slow_candidate(one, deviation, place, one.chosen, saved, cell)
    return found


def _is_of_one_block(block: Ints, value_ns: Floats, saved_ns: Floats) -> bool:
    """Whether what an SM loses is one block's, and others on it are not nearly as slow: that block
    is slow, and not the SM."""
    saved_by_block = np.bincount(block, weights=saved_ns)
    most = int(saved_by_block.argmax())
    if saved_by_block[most] <= MOSTLY_WITHIN * saved_ns.sum():
        return False
    is_its = block == most
    if is_its.all():
        return True
    its_share, share_of_others = (
        saved_ns[some].sum() / value_ns[some].sum() for some in (is_its, ~is_its)
    )
    return bool(share_of_others < MOSTLY_WITHIN * its_share)


def _places(one: Comparable) -> Callable[[Deviation], Place]:
    """Where deviations are. All ranks that have a class are that rank where only one of them has
    it."""
    ranks = np.unique(one.basis.elements.first[one.chosen])
    is_only_one = len(ranks) == 1 and (one.basis.graph.launch_rank != ranks[0]).any()
    every = int(ranks[0]) if is_only_one else ALL
    return lambda deviation: Place(
        every if deviation.first == ALL else deviation.first, deviation.second
    )


def log_spread(value: Floats, floor_ns: float = 0.0) -> float:
    """The spread of the logarithms of the lower part of values, which nothing makes longer."""
    if len(value) < 8:
        return 0.0
    lowest, low = np.quantile(np.log(np.maximum(value, 0.0) + max(floor_ns, 1.0)), [0.05, 0.3])
    return float(low - lowest) / 1.1205


def slow_candidate(
    one: Comparable, deviation: Deviation, place: Place, chosen: Ints, saved: Floats, cell: Ints
) -> list[Candidate]:
    """The candidate of a deviation, unless it is too small in every cell to be looked at."""
    if np.bincount(cell, weights=saved, minlength=1).max() < one.floor_ns:
        return []
    excess = np.where(deviation.calls, deviation.excess, 0.0)
    is_in = saved > 0
    return [Candidate(None, (place,), one.classes, excess, chosen[is_in], saved[is_in])]


def saved_by(
    cells: Cells, cell: Ints, value: Floats, deviation: Deviation, usual_ns: float, floor_ns: float
) -> Floats:
    """What to take off every element so that its cell is rid of the excess of a deviation.

    The noise of the cell stays: its time is scaled, not set. Where a few elements account for most
    of the excess it is taken from those.
    """
    is_in = members(cells, deviation)
    left = (cells.sum_ns + floor_ns) * np.exp(-deviation.excess[cells.call]) - floor_ns
    excess = np.where(is_in, np.maximum(0.0, cells.sum_ns - np.maximum(left, 0.0)), 0.0)
    beyond = np.where(value > OUTLIER_RATIO * usual_ns, value - usual_ns, 0.0)
    beyond_of_cell = np.bincount(cell, weights=beyond, minlength=len(cells.count))
    count_beyond = np.bincount(cell, weights=beyond > 0, minlength=len(cells.count))
    others = cells.sum_ns - np.bincount(
        cell, weights=np.where(beyond > 0, value, 0.0), minlength=len(cells.count)
    )
    are_usual = others < UNEVEN * usual_ns * (cells.count - count_beyond)
    few = is_in & (beyond_of_cell >= BY_OUTLIERS * excess) & are_usual
    # None of them becomes shorter than usual: the rest is noise of the others.
    share_of_beyond = np.minimum(1.0, excess / np.maximum(beyond_of_cell, 1e-9))
    share_of_all = excess / np.maximum(cells.sum_ns, 1e-9)
    saved = np.where(few[cell], beyond * share_of_beyond[cell], value * share_of_all[cell])
    return np.minimum(saved, value)
