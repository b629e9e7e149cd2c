"""Hypotheses: what could be as it usually is. Each is a set of elements and what to take off them.

They come from the data: every generator of `_GENERATORS` looks at one class of elements and knows
one thing that can be wrong with it. A new one is a file with such a function, and a line here.

    model      what a hypothesis is, and what generators look at
    items      single elements that take much longer than others of their class, all over the run
    links      links whose transfers take longer
    crossing   all links between groups of ranks, as between hosts
    places     places that take longer, or do nothing for longer
    surplus    items that one place has too many of, wherever they are handled
    even       regions whose items few blocks have
    growth     places that take longer than in another recording (not one of the generators)
    atoms      what to take off elements so that their place is as its likes
    grouping   all that one place has too much of is one hypothesis; so are places that are alike
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from kprof.analysis.explain.hypotheses.crossing import slow_crossings
from kprof.analysis.explain.hypotheses.even import uneven
from kprof.analysis.explain.hypotheses.grouping import grouped_by_likeness
from kprof.analysis.explain.hypotheses.items import slow_items
from kprof.analysis.explain.hypotheses.links import slow_links
from kprof.analysis.explain.hypotheses.model import Basis, Hypothesis, OneClass, What
from kprof.analysis.explain.hypotheses.places import slow_places
from kprof.analysis.explain.hypotheses.surplus import surplus
from kprof.analysis.replay.elements import Family

__all__ = ["hypotheses_of"]

# In this order: what one has found, the next one does not find again.
_GENERATORS: Final[tuple[Callable[[OneClass], list[Hypothesis]], ...]] = (
    slow_items,
    slow_links,
    slow_crossings,
    slow_places,
    surplus,
    uneven,
)


def hypotheses_of(
    basis: Basis, bound_ns: float = 0.0, left_out: frozenset[Family | What] = frozenset()
) -> list[Hypothesis]:
    """All hypotheses, each by itself against the run as it was.

    `bound_ns` is how far off two clocks may be, `left_out` what is in doubt in this recording.
    """
    found: list[Hypothesis] = []
    for kind in range(len(basis.kinds)):
        if basis.kinds[kind].family in left_out:
            continue
        chosen = np.flatnonzero(basis.elements.kind == kind)
        one = OneClass(basis, kind, chosen, basis.elements.value_ns[chosen].copy(), bound_ns)
        for generator in _GENERATORS:
            found += generator(one)
    found = [hypothesis for hypothesis in found if hypothesis.what not in left_out]
    return [h for h in grouped_by_likeness(basis, found) if h.saved_ns.sum() > 0]
