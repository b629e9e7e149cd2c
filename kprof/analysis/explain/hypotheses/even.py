"""A region dealt out evenly over all blocks of its launches, idle ones included."""

from __future__ import annotations

from typing import Final

import numpy as np

from kprof.analysis.explain.excess import ALL
from kprof.analysis.explain.hypotheses.model import FLOOR, UNEVEN, Hypothesis, OneClass, Place, What
from kprof.analysis.replay.columns import grouped
from kprof.analysis.replay.elements import Family
from kprof.analysis.replay.spans import Bools, Ints

_MOST_LAUNCHES: Final = 0.5


def uneven(one: OneClass) -> list[Hypothesis]:
    """By numbers of elements, so that what chance makes longer stays."""
    if one.family is not Family.OWN:
        return []
    basis, chosen = one.basis, one.chosen
    elements, spans = basis.elements, basis.graph.spans
    at = elements.at[chosen]
    usual = float(elements.value_ns[chosen].mean())
    examples, cell = grouped(spans.launch[at], spans.block[at])
    launch = spans.launch[at][examples]
    count = np.bincount(cell).astype(float)
    total = np.bincount(launch, weights=count, minlength=len(spans.launch_blocks))
    blocks = spans.launch_blocks[launch]
    even = np.ceil(total[launch] / blocks)
    has_many = count > UNEVEN * even
    if _is_of_few_launches(launch, has_many):
        return []
    if usual * float((count - even)[has_many].max(initial=0.0)) < 3 * FLOOR * basis.call_ns:
        return []
    factor = np.minimum(1.0, even / count)[cell]
    saved = elements.value_ns[chosen] * (1 - factor)
    excess = np.zeros(basis.num_calls)
    np.maximum.at(excess, elements.call[chosen], -np.log(factor))
    is_in = saved > 0
    everywhere = (Place(ALL, ALL),)
    return [one.hypothesis(What.UNEVEN, everywhere, excess, chosen[is_in], saved[is_in])]


def _is_of_few_launches(launch: Ints, has_many: Bools) -> bool:
    """A block that has too many on one rank has a surplus.

    A region is dealt out unevenly where it is so everywhere.
    """
    return len(np.unique(launch[has_many])) <= _MOST_LAUNCHES * len(np.unique(launch))
