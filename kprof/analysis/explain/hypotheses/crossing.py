"""Links between groups of ranks: data travels fast within a host and slowly between hosts.

Ranks that are linked by fast transfers are one group. Where all slow links cross from group to
group, none of them gains anything as long as the others are slow: they are one hypothesis.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kprof.analysis.explain.hypotheses.model import Hypothesis, OneClass, Place, What
from kprof.analysis.replay.columns import grouped_median
from kprof.analysis.replay.elements import Family
from kprof.analysis.replay.spans import Floats, Ints

_SLOW: Final = 1.5
_LEAST_LINKS: Final = 2


def slow_crossings(one: OneClass) -> list[Hypothesis]:
    """All links between groups, as fast as those within."""
    elements, chosen = one.basis.elements, one.chosen
    if one.family is not Family.TRAVEL or not elements.is_seen[chosen].any():
        return []
    seen = chosen[elements.is_seen[chosen]]
    examples, link = elements.links(seen)
    took = grouped_median(link, elements.seen_ns[seen], len(examples))
    limit = _SLOW * float(np.quantile(took, 0.1)) + one.bound_ns
    is_fast, ends = took < limit, (elements.first[seen[examples]], elements.second[seen[examples]])
    num_ranks = int(one.basis.graph.spans.rank.max()) + 1
    group = _groups(ends[0][is_fast], ends[1][is_fast], num_ranks)
    is_across = group[ends[0]] != group[ends[1]]
    if is_fast.all() or (~is_fast & ~is_across).any() or is_across.sum() < _LEAST_LINKS:
        return []
    return _across(one, group, float(np.median(took[is_fast])), seen, took[link])


def _groups(first: Ints, second: Ints, num_ranks: int) -> Ints:
    """The number of every rank's group: the lowest rank that fast links lead to."""
    group = np.arange(num_ranks)
    for _ in range(num_ranks):
        lowest = np.minimum(group[first], group[second])
        before = group.copy()
        np.minimum.at(group, first, lowest)
        np.minimum.at(group, second, lowest)
        if (group == before).all():
            break
    return group


def _across(
    one: OneClass, group: Ints, usual_ns: float, seen: Ints, took: Floats
) -> list[Hypothesis]:
    elements = one.basis.elements
    crosses = one.chosen[group[elements.first[one.chosen]] != group[elements.second[one.chosen]]]
    level = float(np.median(took[np.isin(seen, crosses)]))
    value = elements.value_ns[crosses]
    saved = value * max(0.0, 1 - usual_ns / level)
    excess = np.zeros(one.basis.num_calls)
    excess[np.unique(elements.call[crosses])] = np.log(level / max(usual_ns, 1.0))
    pairs = sorted(
        set(zip(elements.first[crosses].tolist(), elements.second[crosses].tolist(), strict=True))
    )
    places = tuple(Place(first, second, True) for first, second in pairs)
    return [one.hypothesis(What.CROSSING, places, excess, crosses, saved)]
