"""Places that take longer than their likes for the same work, or do nothing for longer."""

from __future__ import annotations

import numpy as np

from kprof.analysis.explain.excess import ALL, Atom, cells_of_elements, find_excesses
from kprof.analysis.explain.hypotheses.atoms import log_spread, saved_by, slow_hypothesis
from kprof.analysis.explain.hypotheses.model import Hypothesis, OneClass, Place
from kprof.analysis.replay.elements import Family


def slow_places(one: OneClass) -> list[Hypothesis]:
    """The excesses of a class, each as a hypothesis."""
    chosen, value, floor_ns = one.chosen, one.value_ns, one.floor_ns
    elements = one.basis.elements
    if len(chosen) < 2 or one.family is Family.TRAVEL:
        return []
    cells, cell = cells_of_elements(elements, chosen, value)
    spread = log_spread(value, floor_ns / float(cells.count.mean()))
    excesses = find_excesses(cells, floor_ns, one.basis.num_calls, spread)
    found = []
    for atom in excesses.atoms:
        saved = saved_by(cells, cell, value, atom, excesses.usual_ns, floor_ns)
        # Slow items were taken out of `value`; those of a slow place are slow twice.
        saved *= elements.value_ns[chosen] / np.maximum(value, 1e-9)
        place = _place(one, atom)
        found += slow_hypothesis(one, atom, place, chosen, saved, cell)
    return found


def _place(one: OneClass, atom: Atom) -> Place:
    """All ranks that have a class are that rank where only one of them has it."""
    ranks = np.unique(one.basis.elements.first[one.chosen])
    is_only_one = len(ranks) == 1 and (one.basis.graph.launch_rank != ranks[0]).any()
    return Place(int(ranks[0]) if atom.first == ALL and is_only_one else atom.first, atom.second)
