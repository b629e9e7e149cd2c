"""All links between groups of ranks, as fast as those within: data travels fast within a host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kprof.analysis.findings.candidates.candidate import Candidate, Comparable, Place
from kprof.analysis.findings.thresholds import LEAST_LINKS, LOW, SLOW_LINK, SLOW_NETWORK
from kprof.analysis.replay.columns import grouped, grouped_median
from kprof.analysis.replay.graph import Graph
from kprof.analysis.replay.spans import Floats, Ints


def slow_crossings(one: Comparable, kind: str) -> list[Candidate]:
    """All links between groups, as one candidate of this kind: none of them gains anything as long
    as the others are slow.

    Ranks that are linked by fast transfers are one group, and all slow links have to cross from
    group to group.
    """
    link, took, first, second = _seen_links(one)
    if len(link) == 0:
        return []
    is_fast = took < SLOW_LINK * float(np.quantile(took, 0.1)) + one.bound_ns
    num_ranks = int(one.basis.graph.launch_rank.max()) + 1
    group = _groups(first[is_fast], second[is_fast], num_ranks)
    is_across = group[first] != group[second]
    are_all = is_fast.any() and (is_fast | is_across).all()
    if not are_all or (~is_fast).sum() < LEAST_LINKS or _are_steps(one, group):
        return []
    return _across(one, kind, group, float(np.median(took[is_fast])), took[link])


def _are_steps(one: Comparable, group: Ints) -> bool:
    """Whether no turn has links between these groups beside links within: then turns may differ,
    as steps of an algorithm that sends more and more, and not links."""
    elements, chosen = one.basis.elements, one.chosen
    is_across = group[elements.first[chosen]] != group[elements.second[chosen]]
    region = one.basis.graph.spans.region[elements.at[chosen]]
    _, step = grouped(region, elements.turn[chosen])
    return not np.isin(step[is_across], step[~is_across]).any()


def slow_network(one: Comparable, kind: str, hosts: Ints) -> list[Candidate]:
    """All links between `hosts`, the host of each rank: they are slower by design."""
    link, took, first, second = _seen_links(one)
    is_within = hosts[first] == hosts[second]
    if is_within.all() or not is_within.any():
        return []
    usual_ns, level = float(np.median(took[is_within])), float(np.median(took[~is_within]))
    if level < SLOW_NETWORK * usual_ns + one.bound_ns:
        return []
    found = _across(one, kind, hosts, usual_ns, took[link])
    return [replace(candidate, is_by_design=True) for candidate in found]


def slow_ways(one: Comparable, kind: str, hosts: Ints) -> list[Candidate]:
    """All links from a host to another one, where others between hosts are faster: the way back."""
    elements, chosen = one.basis.elements, one.chosen
    _, took, first, second = _seen_links(one)
    is_across, way = hosts[first] != hosts[second], hosts[first] * len(hosts) + hosts[second]
    way_of_all = hosts[elements.first[chosen]] * len(hosts) + hosts[elements.second[chosen]]
    found = []
    for number in np.unique(way[is_across]).tolist():
        its = way == number
        others = is_across & ~its
        if min(its.sum(), others.sum()) < LEAST_LINKS:
            continue
        usual_ns, level = float(np.median(took[others])), float(np.median(took[its]))
        least_ns = float(np.quantile(took[its], LOW))
        if least_ns >= SLOW_LINK * usual_ns + one.bound_ns:
            found.append(_candidate(one, kind, chosen[way_of_all == number], usual_ns, level))
    return found


def _seen_links(one: Comparable) -> tuple[Ints, Floats, Ints, Ints]:
    """By transfer that was seen the number of its link; what each link takes, and its two ranks."""
    elements = one.basis.elements
    seen = one.chosen[elements.is_seen[one.chosen]]
    if len(seen) == 0:
        return seen, np.zeros(0), seen, seen
    examples, link = elements.links(seen)
    took = grouped_median(link, elements.seen_ns[seen], len(examples))
    return link, took, elements.first[seen[examples]], elements.second[seen[examples]]


def hosts_of(graph: Graph) -> Ints:
    """By rank the number of its host."""
    host = np.zeros(int(graph.launch_rank.max(initial=0)) + 1, dtype=np.int64)
    host[graph.launch_rank] = graph.spans.launch_host
    return host


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
    one: Comparable, kind: str, group: Ints, usual_ns: float, took: Floats
) -> list[Candidate]:
    """What links between these groups take beyond `usual_ns`, in regions that have transfers within
    a group, too: else nothing tells what those would take. `took` is by transfer that was seen what
    its link takes."""
    elements, chosen = one.basis.elements, one.chosen
    region = one.basis.graph.spans.region[elements.at[chosen]]
    ends = group[elements.first[chosen]], group[elements.second[chosen]]
    is_seen, is_within = elements.is_seen[chosen], ends[0] == ends[1]
    _, pair = grouped(*ends)
    # Between other groups nobody had to wait: those links may be as fast as any.
    is_slow = np.isin(pair, pair[is_seen & ~is_within])
    level = float(np.median(took[~is_within[is_seen]]))
    # Those within for which nobody waits tell, too, where they surely take less.
    tells = is_within & (is_seen | (elements.seen_ns[chosen] < level / SLOW_LINK))
    is_chosen = is_slow & np.isin(region, region[tells])
    if not (is_chosen & is_seen).any():
        return []
    level = float(np.median(took[is_chosen[is_seen]]))
    return [_candidate(one, kind, chosen[is_chosen], usual_ns, level)]


def _candidate(
    one: Comparable, kind: str, crosses: Ints, usual_ns: float, level: float
) -> Candidate:
    """That these transfers, which take `level`, take `usual_ns`."""
    elements = one.basis.elements
    saved = elements.value_ns[crosses] * max(0.0, 1 - usual_ns / level)
    excess = np.zeros(one.basis.num_calls)
    excess[np.unique(elements.call[crosses])] = np.log(level / max(usual_ns, 1.0))
    pairs = sorted(
        set(zip(elements.first[crosses].tolist(), elements.second[crosses].tolist(), strict=True))
    )
    places = tuple(Place(first, second, True) for first, second in pairs)
    return Candidate(kind, places, one.classes, excess, crosses, saved, is_alone=True)
