"""From an excess (`excess.py`) to a hypothesis: what to take off each element of its cells."""

from __future__ import annotations

from typing import Final

import numpy as np

from kprof.analysis.explain.excess import Atom, Cells
from kprof.analysis.explain.hypotheses.model import UNEVEN, Hypothesis, OneClass, Place, What
from kprof.analysis.replay.spans import Bools, Floats, Ints

# Of the excess of a cell, what single elements account for is taken from these.
_BY_OUTLIERS: Final = 0.5
_OUTLIER_RATIO: Final = 2.0


def log_spread(value: Floats, floor_ns: float = 0.0) -> float:
    """The spread of the logarithms of the lower part of values, which nothing makes longer."""
    if len(value) < 8:
        return 0.0
    lowest, low = np.quantile(np.log(np.maximum(value, 0.0) + max(floor_ns, 1.0)), [0.05, 0.3])
    return float(low - lowest) / 1.1205


def slow_hypothesis(
    one: OneClass, atom: Atom, place: Place, chosen: Ints, saved: Floats, cell: Ints
) -> list[Hypothesis]:
    """The hypothesis of an atom, unless it is too small in every cell to be looked at."""
    if np.bincount(cell, weights=saved).max() < one.floor_ns:
        return []
    excess = np.where(atom.calls, atom.excess, 0.0)
    is_in = saved > 0
    return [one.hypothesis(What.SLOW, (place,), excess, chosen[is_in], saved[is_in])]


def members(cells: Cells, atom: Atom) -> Bools:
    """Which cells an atom is laid to."""
    return atom.calls[cells.call] & atom.covers(cells.first, cells.second)


def saved_by(
    cells: Cells, cell: Ints, value: Floats, atom: Atom, usual_ns: float, floor_ns: float
) -> Floats:
    """What to take off every element so that its cell is rid of the excess of an atom.

    The noise of the cell stays: its time is scaled, not set. Where a few elements account for most
    of the excess it is taken from those.
    """
    is_in = members(cells, atom)
    left = (cells.sum_ns + floor_ns) * np.exp(-atom.excess[cells.call]) - floor_ns
    excess = np.where(is_in, np.maximum(0.0, cells.sum_ns - np.maximum(left, 0.0)), 0.0)
    beyond = np.where(value > _OUTLIER_RATIO * usual_ns, value - usual_ns, 0.0)
    beyond_of_cell = np.bincount(cell, weights=beyond, minlength=len(cells.count))
    count_beyond = np.bincount(cell, weights=beyond > 0, minlength=len(cells.count))
    others = cells.sum_ns - np.bincount(
        cell, weights=np.where(beyond > 0, value, 0.0), minlength=len(cells.count)
    )
    are_usual = others < UNEVEN * usual_ns * (cells.count - count_beyond)
    few = is_in & (beyond_of_cell >= _BY_OUTLIERS * excess) & are_usual
    share_of_beyond = excess / np.maximum(beyond_of_cell, 1e-9)
    share_of_all = excess / np.maximum(cells.sum_ns, 1e-9)
    saved = np.where(few[cell], beyond * share_of_beyond[cell], value * share_of_all[cell])
    return np.minimum(saved, value)
