"""Data takes longer on a link."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kprof.analysis.findings import words
from kprof.analysis.findings.candidates.candidate import Basis, Candidate, Comparable, Place
from kprof.analysis.findings.candidates.crossings import (
    hosts_of,
    slow_crossings,
    slow_network,
    slow_ways,
)
from kprof.analysis.findings.candidates.excess import (
    ALL,
    Cells,
    Deviation,
    cells_of_elements,
    find_deviations,
    on_links_of,
)
from kprof.analysis.findings.candidates.slow_places import log_spread, saved_by, slow_candidate
from kprof.analysis.findings.finding import Finding, Kind, RestsOn
from kprof.analysis.findings.thresholds import (
    ALIKE,
    BEST_TRANSFERS,
    CELL,
    CLOCKS_OF_TWO_LINKS,
    ENOUGH_TRANSFERS,
    IN_MOST_CALLS,
    LINK_SPREAD,
    LOW,
    NEARLY_AS_MUCH,
    NOT_SEEN,
    WORK_BETWEEN,
    WOULD_BE_SEEN,
)
from kprof.analysis.replay.columns import grouped, grouped_median
from kprof.analysis.replay.elements import Elements, Family
from kprof.analysis.replay.spans import Bools, Floats, Ints
from kprof.analysis.wording import ratio


class SlowTransfer(Kind):
    name = "slow_transfer"
    finds = "data takes longer on a link"
    replays = "it takes as long as on the other links"
    covered = (Family.TRAVEL,)
    figures = ("blame", "wait-distribution")
    rests_on = frozenset({RestsOn.TIMES, RestsOn.COMMON_CLOCK})

    def candidates(self, comparable: Comparable) -> list[Candidate]:
        """Slow links, one by one, and all links between groups of ranks, or one way."""
        if comparable.family is not Family.TRAVEL:
            return []
        hosts = hosts_of(comparable.basis.graph)
        alike = replace(comparable, basis=_alike(comparable.basis, comparable.chosen, hosts))
        found = slow_crossings(alike, self.name)
        # Links between groups may be all that a step has.
        found += _slow_links(alike if found else _by_step(alike, hosts))
        if hosts.any():
            found += slow_ways(alike, self.name, hosts)
            found += slow_network(comparable, self.name, hosts)
        return found

    def fact(self, finding: Finding) -> str:
        """Transfers from rank 1 to rank 2 are 3.0x slower than elsewhere"""
        others = "within hosts" if finding.is_by_design else "elsewhere"
        slower = f"{ratio(finding.factor)} slower than {others}"
        return f"Transfers {words.place(finding)} are {slower}{words.when(finding)}"

    def advice(self, finding: Finding) -> str:
        if finding.is_by_design:
            return "sum or collect within a host first and send less between hosts, or send earlier"
        return "check the route of that link, and what else is sent over it"


KIND = SlowTransfer()


def _slow_links(one: Comparable) -> list[Candidate]:
    """Links whose transfers take longer, as seen where a wait was held up by one. What is known of
    the others is the most that they can have taken; they are as slow as their link where it is so
    in most calls."""
    basis, chosen, floor_ns = one.basis, one.chosen, max(one.floor_ns, one.bound_ns)
    elements = basis.elements
    _, link = grouped(elements.call[chosen], elements.first[chosen], elements.second[chosen])
    is_seen, seen_ns = elements.is_seen[chosen], elements.seen_ns[chosen]
    count = int(link.max(initial=-1)) + 1
    has_seen = np.bincount(link, weights=is_seen, minlength=count) > 0
    least = np.full(count, np.inf)
    np.minimum.at(least, link, seen_ns)
    is_bound = ~has_seen[link] & (seen_ns == least[link])
    counts = is_seen | (is_bound if has_seen.mean() < 0.5 else np.zeros(len(link), dtype=bool))
    if counts.sum() < 2:
        return []
    part, seen_ns = chosen[counts], seen_ns[counts]
    seen_ns = np.minimum(seen_ns, _best_ns(elements, part, seen_ns))
    cells, cell = cells_of_elements(elements, part, seen_ns)
    spread = _spread(elements, part, seen_ns, floor_ns / float(cells.count.mean()))
    deviations, usual_ns = find_deviations(cells, floor_ns, basis.num_calls, spread, _low(cells))
    found = []
    for deviation in _whole(elements, part, deviations):
        deviation = _with_unknown(basis, chosen, deviation, usual_ns)
        deviation = _wherever_it_can_be(basis, chosen, deviation, usual_ns)
        saved = saved_by(cells, cell, seen_ns, deviation, usual_ns, floor_ns)
        share = np.minimum(1.0, saved / np.maximum(seen_ns, 1e-9))
        saved = np.where(elements.is_seen[part], elements.value_ns[part] * share, 0.0)
        if (saved > 0).any() and float(
            np.median(saved[saved > 0])
        ) < CLOCKS_OF_TWO_LINKS * one.bound_ns:
            continue
        usual_share = float(np.median(share[saved > 0])) if (saved > 0).any() else 0.0
        hidden = on_links_of(deviation, elements, chosen[~is_seen])
        found += slow_candidate(
            one,
            deviation,
            _place_of(deviation, elements, chosen),
            np.r_[part, hidden],
            np.r_[saved, usual_share * elements.value_ns[hidden]],
            np.r_[cell, np.full(len(hidden), int(cell.max()) + 1)],
        )
    return found


def _whole(elements: Elements, part: Ints, deviations: list[Deviation]) -> list[Deviation]:
    """All links into a rank, or out of it, in place of single ones, where all of these that were
    seen are slow alike: of the others nothing is known."""
    seen = part[elements.is_seen[part]]
    links = set(zip(elements.first[seen].tolist(), elements.second[seen].tolist(), strict=True))
    for end in (0, 1):
        for rank in sorted({_link(deviation)[end] for deviation in deviations} - {ALL}):
            single = [a for a in deviations if _link(a)[end] == rank and ALL not in _link(a)]
            is_each = {_link(a) for a in single} == {link for link in links if link[end] == rank}
            if len(single) > 1 and is_each and _are_alike(single):
                others = [a for a in deviations if _link(a)[end] != rank or ALL in _link(a)]
                first, second = (rank, ALL) if end == 0 else (ALL, rank)
                deviations = [*others, _together(single, first, second)]
    return deviations


def _with_unknown(basis: Basis, chosen: Ints, deviation: Deviation, usual_ns: float) -> Deviation:
    """All links into a rank in place of one, where every other one may be as slow: none was seen or
    faster in any call, and the wait for the one hides how long they took, not work after it."""
    elements, (source, end) = basis.elements, _link(deviation)
    into = chosen[elements.second[chosen] == end]
    is_other = elements.first[into] != source
    slow_ns = usual_ns * np.exp(NEARLY_AS_MUCH * deviation.height)
    is_known = elements.is_seen[into] | (elements.seen_ns[into] < slow_ns)
    if ALL in (source, end) or (is_other & is_known).any():
        return deviation
    most_ns = WORK_BETWEEN * usual_ns * np.expm1(deviation.height)
    is_hidden = _until_next_ns(basis, elements.at[into], is_other) < most_ns
    may_be = is_hidden and not _would_be_seen(basis, into, is_other)
    return replace(deviation, first=ALL) if may_be else deviation


def _would_be_seen(basis: Basis, into: Ints, is_other: Bools) -> bool:
    """Whether the others would have been waited for if they were as slow as the one: as many of
    them would take longer than they can have, by what the one takes in its call, and hardly any
    wait for them is longer than a look."""
    elements = basis.elements
    its, others = into[~is_other & elements.is_seen[into]], into[is_other]
    num_calls = int(elements.call[into].max()) + 1
    usual_ns = grouped_median(elements.call[its], elements.seen_ns[its], num_calls)
    took = np.sort(elements.seen_ns[its] / usual_ns[elements.call[its]])
    at_most = elements.seen_ns[others] / usual_ns[elements.call[others]]
    at_most = at_most[~np.isnan(at_most)]
    longer = 1 - np.searchsorted(took, at_most, side="right") / max(1, len(took))
    look_ns = basis.graph.own_ns[elements.at[others]]
    num_long = int((look_ns > 2 * np.median(look_ns)).sum())
    return bool(longer.sum() >= max(WOULD_BE_SEEN, NOT_SEEN * num_long))


def _until_next_ns(basis: Basis, waits: Ints, is_other: Bools) -> float:
    """The median time from the end of a wait for one link to the next wait on its track, where that
    is for another; infinite where there is none."""
    spans, before, after = basis.graph.spans, waits[:-1], waits[1:]
    is_next = ~is_other[:-1] & is_other[1:] & (spans.track[before] == spans.track[after])
    between = (spans.start[after] - spans.end[before])[is_next]
    return float(np.median(between)) if len(between) else np.inf


def _link(deviation: Deviation) -> tuple[int, int]:
    return deviation.first, deviation.second


def _are_alike(deviations: list[Deviation]) -> bool:
    heights = [deviation.height for deviation in deviations]
    return max(heights) - min(heights) <= ALIKE * max(heights)


def _together(deviations: list[Deviation], first: int, second: int) -> Deviation:
    calls = np.any([deviation.calls for deviation in deviations], axis=0)
    return Deviation(
        first, second, calls, np.max([deviation.excess for deviation in deviations], axis=0)
    )


def _low(cells: Cells) -> float:
    """The quantile of links that is their level: where one rank has most of the links, no link of
    that rank, so that they may all be slow."""
    most = max(np.bincount(column).max() for column in (cells.first, cells.second))
    return min(LOW, max(BEST_TRANSFERS, (1 - float(most) / len(cells.call)) / 2))


def _wherever_it_can_be(
    basis: Basis, chosen: Ints, deviation: Deviation, usual_ns: float
) -> Deviation:
    """A link that is slow in most calls that tell is slow in the others, too.

    In those nobody ever had to wait for it.
    """
    elements, height = basis.elements, deviation.height
    on_it = chosen[deviation.covers(elements.first[chosen], elements.second[chosen])]
    cannot_be = elements.seen_ns[on_it] < usual_ns * np.exp(height / 2)
    tells = np.zeros_like(deviation.calls)
    tells[elements.call[on_it[elements.is_seen[on_it] | cannot_be]]] = True
    if not tells.any() or deviation.calls[tells].mean() < IN_MOST_CALLS:
        return deviation
    calls = deviation.calls | ~tells
    return replace(deviation, calls=calls, excess=np.where(tells, deviation.excess, height))


def _best_ns(elements: Elements, part: Ints, seen_ns: Floats) -> Floats:
    """No limit for transfers that were seen. The others took no more than the best bound of all,
    nor than the best link usually takes: what is only known to be less than something is no reason
    to call a link slow."""
    is_seen = elements.is_seen[part]
    if is_seen.all():
        return np.full(len(part), np.inf)
    best = float(np.quantile(seen_ns[~is_seen], 0.05))
    if is_seen.any():
        _, link = elements.links(part[is_seen])
        of_links = grouped_median(link, seen_ns[is_seen], int(link.max()) + 1)
        best = min(best, float(of_links.min()))
    return np.where(is_seen, np.inf, best)


def _alike(basis: Basis, chosen: Ints, hosts: Ints) -> Basis:
    """With what transfers took as if all were of one region and stayed on their host: against what
    is usual among their own.

    Where all of a region have one source or one destination, its links can only be compared with
    those of other regions; but never those between hosts with those within.
    """
    elements, is_seen = basis.elements, basis.elements.is_seen[chosen]
    if not is_seen.any():
        return basis
    overall = _usual_ns(elements, chosen, np.inf)
    region = basis.graph.spans.region[elements.at[chosen]]
    leaves = hosts[elements.first[chosen]] != hosts[elements.second[chosen]]
    factor = np.ones(len(chosen))
    for number in np.unique(region).tolist():
        here = region == number
        ends = (elements.first[chosen[here]], elements.second[chosen[here]])
        if (here & is_seen).sum() >= 8 and min(len(np.unique(end)) for end in ends) > 1:
            factor[here] = overall / _usual_ns(elements, chosen[here], overall)
        for part in (here & leaves, here & ~leaves):
            is_apart = (part != here).any() or (leaves[here].all() and not leaves.all())
            if is_apart and (part & is_seen).any():
                factor[part] = overall / _usual_ns(elements, chosen[part], np.inf)
    return _scaled(basis, chosen, factor)


def _scaled(basis: Basis, chosen: Ints, factor: Floats) -> Basis:
    """With what transfers took so many times as long."""
    elements = basis.elements
    seen_ns = elements.seen_ns.copy()
    seen_ns[chosen] *= factor
    return replace(basis, elements=replace(elements, seen_ns=seen_ns))


def _by_step(one: Comparable, hosts: Ints) -> Comparable:
    """With what transfers took as if all steps of an algorithm sent as much."""
    steps = _steps(one, hosts)
    if not steps:
        return one
    elements, chosen = one.basis.elements, one.chosen
    factor, overall = np.ones(len(chosen)), _usual_ns(elements, chosen, np.inf)
    for step in steps:
        factor[step] = overall / _usual_ns(elements, chosen[step], np.inf)
    return replace(one, basis=_scaled(one.basis, chosen, factor))


def _steps(one: Comparable, hosts: Ints) -> list[Ints]:
    """Where in `chosen` the transfers of each step of an algorithm are: at the same turn, every
    rank sends on as many links of a region and receives on as many, and not on all of them."""
    elements, chosen = one.basis.elements, one.chosen
    first, second = elements.first[chosen], elements.second[chosen]
    region = one.basis.graph.spans.region[elements.at[chosen]]
    leaves = hosts[first] != hosts[second]
    num_ranks = len(np.unique(np.r_[first, second]))
    of_step, step = grouped(region, leaves, elements.turn[chosen])
    _, whole = grouped(region, leaves)
    links = np.bincount(whole[grouped(whole, first, second)[0]])[whole[of_step]]
    seen = np.flatnonzero(elements.is_seen[chosen])
    seen = seen[grouped(step[seen], first[seen], second[seen])[0]]
    count = np.bincount(step[seen], minlength=len(of_step))
    is_step = (count > 0) & (count < links)
    for end in (first, second):
        examples, row = grouped(step[seen], end[seen])
        of_rank = step[seen[examples]]
        is_step[of_rank[np.bincount(row) * num_ranks != count[of_rank]]] = False
    parts = np.split(np.argsort(step, kind="stable"), np.cumsum(np.bincount(step))[:-1])
    return [parts[number] for number in np.flatnonzero(is_step).tolist()]


def _usual_ns(elements: Elements, chosen: Ints, otherwise: float) -> float:
    """What the better ones of links take. Where others were done within less, only slow ones were
    seen: then no more than those, and no more than `otherwise`."""
    seen_ns, is_seen = elements.seen_ns[chosen], elements.is_seen[chosen]
    _, link = elements.links(chosen)
    of_links = grouped_median(link[is_seen], seen_ns[is_seen], int(link.max()) + 1)
    usual = float(np.nanquantile(of_links, LOW, method="lower"))
    if not is_seen.all():
        most = float(np.quantile(seen_ns[~is_seen], BEST_TRANSFERS))
        usual = min(most, otherwise) if most < usual * np.exp(-CELL) else usual
    return max(1.0, usual)


def _spread(elements: Elements, part: Ints, seen_ns: Floats, floor_ns: float) -> float:
    """The spread of the logarithm of transfers, each against what its link usually takes."""
    seen, seen_ns = part[elements.is_seen[part]], seen_ns[elements.is_seen[part]]
    if len(seen) == 0:
        return LINK_SPREAD
    _, link = elements.links(seen)
    usual = grouped_median(link, seen_ns, int(link.max()) + 1)
    is_told = (np.bincount(link) >= ENOUGH_TRANSFERS)[link]
    alike = seen_ns / np.maximum(1.0, usual[link]) * float(np.median(seen_ns))
    return log_spread(alike[is_told], floor_ns) or LINK_SPREAD


def _place_of(deviation: Deviation, elements: Elements, chosen: Ints) -> Place:
    """All links out of a rank that has one are this link."""
    ends = [deviation.first, deviation.second]
    if ALL in ends:
        on_it = chosen[deviation.covers(elements.first[chosen], elements.second[chosen])]
        for i, column in enumerate((elements.first, elements.second)):
            only = np.unique(column[on_it])
            ends[i] = int(only[0]) if len(only) == 1 else ALL
    return Place(ends[0], ends[1], True)
