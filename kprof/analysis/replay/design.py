"""Changes of a design rather than of one place: transfers that take no time, waits in the order in
which their data arrives, launches that do not wait for each other, full waves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kprof.analysis.replay.columns import grouped
from kprof.analysis.replay.graph import Graph, moved
from kprof.analysis.replay.replay import Replay
from kprof.analysis.replay.spans import Ints
from kprof.analysis.replay.turns import Change, Edit


def without_transfers(graph: Graph) -> Edit:
    """All data is there when its send ends."""
    waits = np.flatnonzero((graph.releaser >= 0) & (graph.releaser == graph.spans.send))
    return Edit(travel=Change(waits, np.maximum(0.0, graph.travel_ns[waits])))


def in_order_of_arrival(graph: Graph, replay: Replay) -> Replay | None:
    """A replay in which tracks take what they wait for in the order in which it arrives.

    None where that is the order anyway. Nor can the order be known where clocks are so far off that
    it waits for itself.
    """
    ends, at = replay.span_ends(Edit()), np.arange(len(graph.spans))
    for region in np.unique(graph.spans.region[graph.spans.send >= 0]).tolist():
        for units in _runs_of_units(graph, region):
            waits = units[:, 0]
            arrival = ends[graph.releaser[waits]] + graph.travel_ns[waits]
            at[units[np.argsort(arrival, kind="stable")]] = units
    if (at == np.arange(len(at))).all():
        return None
    changed = Replay(moved(graph, at))
    return changed if replay.had_circle or not changed.had_circle else None


def _runs_of_units(graph: Graph, region: int) -> Iterator[Ints]:
    """Waits of a region that follow each other on a track, each with the work on its data: units x
    spans.

    That work is what follows every one of them. What follows only some of them, or the last one,
    may need all data: it stays.
    """
    spans = graph.spans
    waits = np.flatnonzero((spans.region == region) & (graph.releaser >= 0))
    for of_track in np.split(waits, np.flatnonzero(np.diff(spans.track[waits])) + 1):
        if len(of_track) < 2:
            continue
        last = int(np.searchsorted(spans.track, spans.track[of_track[0]], side="right"))
        length = int(min(*np.diff(of_track), last - of_track[-1]))
        units = of_track[:, None] + np.arange(length)
        shape = spans.region[units]
        is_next = np.r_[False, np.diff(of_track) == length]
        is_next[1:] &= (shape[1:] == shape[:-1]).all(axis=1)
        for run in np.split(units, np.flatnonzero(~is_next[1:]) + 1):
            # A barrier between waits keeps them in their order.
            if len(run) > 1 and not (graph.barrier[run] >= 0).any():
                yield run


def without_launch_order(graph: Graph) -> Graph | None:
    """Every track follows that of its block and warp in the launch before, where there is one."""
    spans = graph.spans
    first = np.flatnonzero((spans.previous < 0) & (graph.before < 0))
    last = np.flatnonzero(np.r_[spans.track[1:] != spans.track[:-1], True]) if len(spans) else first
    launches = np.r_[spans.launch[last], graph.launch_before[spans.launch[first]]]
    both = np.r_[last, first]
    _, track = grouped(launches, spans.block[both], spans.warp[both])
    last_of = np.full(len(both), -1)
    last_of[track[: len(last)]] = last
    found = last_of[track[len(last) :]]
    is_found = (found >= 0) & (spans.call[found] == spans.call[first])
    first, found = first[is_found], found[is_found]
    before, gap = graph.before.copy(), graph.gap_ns.copy()
    before[first] = found
    gap[first] += graph.launch_gap_ns[spans.launch[first]]
    if (before == graph.before).all():
        return None
    return replace(graph, before=before, gap_ns=gap)


def waves_dealt_out(graph: Graph) -> Edit | None:
    """What a place has to do beyond the mean of its launch's places taken off.

    None where all blocks found room.
    """
    spans = graph.spans
    place = _places(graph)
    if place is None:
        return None
    works = ~graph.is_wait
    busy = np.where(works, graph.own_ns, 0.0) + np.where(spans.previous >= 0, graph.gap_ns, 0.0)
    of_place = np.bincount(place, weights=busy)
    launch = np.zeros(len(of_place), dtype=np.int64)
    launch[place] = spans.launch
    is_used = np.bincount(place) > 0
    sums = np.bincount(launch[is_used], weights=of_place[is_used])
    mean = sums / np.maximum(1, np.bincount(launch[is_used]))
    share = np.maximum(0.0, 1 - mean[launch] / np.maximum(of_place, 1e-9))[place]
    at = np.flatnonzero(share > 0)
    own = np.where(works, graph.own_ns, 0.0)[at] * share[at]
    gap = np.maximum(0.0, graph.gap_ns[at]) * share[at]
    return Edit(own=Change(at, own), gap=Change(at, gap))


def _places(graph: Graph) -> Ints | None:
    """The number of the first track of the chain that a span's track is in."""
    spans = graph.spans
    follows = np.flatnonzero((spans.previous < 0) & (graph.before >= 0))
    if len(follows) == 0:
        return None
    chain = np.arange(int(spans.track.max()) + 1)
    chain[spans.track[follows]] = spans.track[graph.before[follows]]
    while (chain[chain] != chain).any():
        chain = chain[chain]
    return chain[spans.track]
