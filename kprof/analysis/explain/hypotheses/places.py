"""Places that take longer than their likes for the same work, or do nothing for longer."""

from __future__ import annotations

import numpy as np

from kprof.analysis.explain.elements import Family
from kprof.analysis.explain.excess import cells_of, find_excesses
from kprof.analysis.explain.hypotheses.atoms import log_spread, saved_by, slow_hypothesis
from kprof.analysis.explain.hypotheses.model import Hypothesis, OneClass, Place


def slow_places(one: OneClass) -> list[Hypothesis]:
    """The excesses of a class, each as a hypothesis."""
    chosen, value, floor_ns = one.chosen, one.value_ns, one.floor_ns
    elements = one.basis.elements
    if len(chosen) < 2 or one.family is Family.TRAVEL:
        return []
    cells, cell = cells_of(
        elements.call[chosen], elements.first[chosen], elements.second[chosen], value
    )
    spread = log_spread(value, floor_ns / float(cells.count.mean()))
    excesses = find_excesses(cells, floor_ns, one.basis.num_calls, spread)
    found = []
    for atom in excesses.atoms:
        saved = saved_by(cells, cell, value, atom, excesses.usual_ns, floor_ns)
        # Slow items were taken out of `value`; those of a slow place are slow twice.
        saved *= elements.value_ns[chosen] / np.maximum(value, 1e-9)
        place = Place(atom.first, atom.second)
        found += slow_hypothesis(one, atom, place, chosen, saved, cell)
    return found
