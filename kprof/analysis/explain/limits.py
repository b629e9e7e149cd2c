"""What the design of a kernel costs, on top of what stands out: locks, barriers, waves, transfers,
the order of waits.

Nobody is to blame for these, so they are no findings: every block waits at a barrier. But where
nothing stands out, they are what a run is made of. Each is a replay of what the findings leave,
without one thing; they overlap, and so they do not add up.

    lock           everybody gets it at once
    barrier        nobody waits for others there
    transfers      data is there as soon as it is sent
    arrival order  a track takes what comes first; what follows all of its waits stays behind them
    waves          blocks that found no room at first: their work dealt out evenly over the places
    launches       a block begins when the block of its number of the launch before has ended
    few blocks     the work of launches with few blocks is spread over all processors
    few producers, shallow queue, small items    queues between warps of a block: see queues.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import numpy as np

from kprof.analysis.explain.hypotheses.model import Basis
from kprof.analysis.replay.elements import edit_of
from kprof.analysis.replay.graph import Graph, moved
from kprof.analysis.replay.queues import changes_of
from kprof.analysis.replay.replay import Change, Edit, Replay
from kprof.analysis.replay.spans import Floats, Ints

# A launch of few blocks leaves two of three processors idle; it is the right choice where each
# works shortly.
_FEW_BLOCKS: Final = 1 / 3
_LONG_NS: Final = 20_000.0
_LONG_SHARE: Final = 0.5
# More than any call takes: an edge that is so much shorter holds nobody up.
_GONE_NS: Final = 1e15


class LimitKind(str, Enum):
    """The list of the module."""

    LOCK = "lock"
    BARRIER = "barrier"
    TRANSFERS = "transfers"
    ARRIVAL_ORDER = "arrival_order"
    WAVES = "waves"
    LAUNCHES = "launches"
    FEW_BLOCKS = "few_blocks"
    FEW_PRODUCERS = "few_producers"
    SHALLOW_QUEUE = "shallow_queue"
    SMALL_ITEMS = "small_items"


@dataclass(frozen=True)
class Limit:
    """What all calls together would get shorter, in ns, and its share of them.

    `region` where it is about one, `blocks` for few blocks: how many there are, for how many
    processors.
    """

    kind: LimitKind
    region: str | None
    gain_ns: float
    share: float
    blocks: tuple[int, int] | None = None


def limits_of(basis: Basis, left: Floats, least_share: float) -> tuple[Limit, ...]:
    """The limits of a run, the largest first.

    `left` is the part of every element that the findings leave.
    """
    graph = _what_is_left(basis, left)
    base = _total_ns(Replay(graph))
    before = float((basis.graph.call_end - basis.graph.call_start).sum())
    found = []
    for kind, region, other in _alternatives(graph):
        gain = base - other
        if gain >= least_share * before:
            blocks = _fewest_blocks(graph) if kind is LimitKind.FEW_BLOCKS else None
            found.append(Limit(kind, region, gain, gain / before, blocks))
    return tuple(sorted(found, key=lambda limit: -limit.gain_ns))


def _what_is_left(basis: Basis, left: Floats) -> Graph:
    """The graph without what the findings take off."""
    graph, elements = basis.graph, basis.elements
    chosen = np.flatnonzero(left < 1)
    edit = edit_of(elements, chosen, (elements.value_ns * (1 - left))[chosen])
    return replace(
        graph,
        own_ns=_without(graph.own_ns, edit.own),
        gap_ns=_without(graph.gap_ns, edit.gap),
        travel_ns=_without(graph.travel_ns, edit.travel),
        launch_gap_ns=_without(graph.launch_gap_ns, edit.launch_gap),
    )


def _without(column: Floats, change: Change) -> Floats:
    shorter = column.copy()
    shorter[change.at] -= change.saved_ns
    return shorter


def _total_ns(replay: Replay, edit: Edit | None = None) -> float:
    return float((replay.call_ends([edit or Edit()])[0] - replay.graph.call_start).sum())


def _alternatives(graph: Graph) -> Iterator[tuple[LimitKind, str | None, float]]:
    """Every limit that a graph can have, and what all of its calls take without it."""
    replay = Replay(graph)
    for kind, region, members, saved in _edges_gone(graph):
        yield kind, region, _total_ns(replay, Edit(travel=Change(members, saved)))
    for kind, edit in (
        (LimitKind.WAVES, _waves_dealt_out(graph)),
        (LimitKind.FEW_BLOCKS, _spread_over_processors(graph)),
    ):
        if edit is not None:
            yield kind, None, _total_ns(replay, edit)
    for name, filled_by, queued, edit in changes_of(graph):
        filler = graph.spans.region_names[filled_by]
        yield LimitKind(name), filler, _total_ns(Replay(queued), edit)
    for kind, other in (
        (LimitKind.ARRIVAL_ORDER, _in_order_of_arrival(graph, replay)),
        (LimitKind.LAUNCHES, _without_launch_order(graph)),
    ):
        if other is None:
            continue
        changed = Replay(other)
        # Where clocks are off, what came first cannot always be told: then the new order may wait
        # for itself.
        if replay.had_circle or not changed.had_circle:
            yield kind, None, _total_ns(changed)


def _edges_gone(graph: Graph) -> Iterator[tuple[LimitKind, str | None, Ints, Floats]]:
    spans = graph.spans
    is_sync = spans.is_of("sync")
    kinds = {
        LimitKind.LOCK: is_sync & ((graph.releaser >= 0) | (graph.queue >= 0)) & (spans.send < 0),
        LimitKind.BARRIER: graph.barrier >= 0,
    }
    for kind, is_member in kinds.items():
        for region in np.unique(spans.region[is_member]).tolist():
            members = np.flatnonzero(is_member & (spans.region == region))
            yield kind, spans.region_names[region], members, np.full(len(members), _GONE_NS)
    travels = np.flatnonzero((graph.releaser >= 0) & (graph.releaser == spans.send))
    across = travels[spans.rank[graph.releaser[travels]] != spans.rank[travels]]
    if len(across):
        yield LimitKind.TRANSFERS, None, across, graph.travel_ns[across]


def _spread_over_processors(graph: Graph) -> Edit | None:
    """The work of launches with few blocks, each of which works long.

    Else few blocks are the right choice.
    """
    spans = graph.spans
    processors = spans.launch_processors
    is_few = spans.launch_blocks < _FEW_BLOCKS * processors
    work = np.where(graph.is_wait, 0.0, graph.own_ns)
    longest = np.zeros(len(processors))
    of_track = np.bincount(spans.track, weights=work)
    np.maximum.at(longest, spans.launch, of_track[spans.track])
    call_ns = float(np.median(graph.call_end - graph.call_start)) if len(graph.call_end) else 0.0
    is_few &= longest >= max(_LONG_NS, _LONG_SHARE * call_ns)
    at = np.flatnonzero(is_few[spans.launch] & (work > 0))
    if len(at) == 0:
        return None
    share = 1 - spans.launch_blocks / np.maximum(processors, 1)
    return Edit(own=Change(at, work[at] * share[spans.launch[at]]))


def _fewest_blocks(graph: Graph) -> tuple[int, int]:
    """Blocks and processors of the launch that leaves the most processors idle for its blocks."""
    spans = graph.spans
    ratio = spans.launch_blocks / np.maximum(spans.launch_processors, 1)
    first = int(np.where(spans.launch_processors > 0, ratio, np.inf).argmin())
    return int(spans.launch_blocks[first]), int(spans.launch_processors[first])


def _waves_dealt_out(graph: Graph) -> Edit | None:
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
    places: Ints = chain[spans.track]
    return places


def _in_order_of_arrival(graph: Graph, replay: Replay) -> Graph | None:
    """The same graph with what waits bring in the order in which it comes.

    None where that is the order anyway.
    """
    ends = replay.span_ends(Edit())
    at = np.arange(len(graph.spans))
    for region in np.unique(graph.spans.region[graph.spans.send >= 0]).tolist():
        for units in _runs_of_units(graph, region):
            waits = units[:, 0]
            arrival = ends[graph.releaser[waits]] + graph.travel_ns[waits]
            at[units[np.argsort(arrival, kind="stable")]] = units
    return None if (at == np.arange(len(at))).all() else moved(graph, at)


def _runs_of_units(graph: Graph, region: int) -> Iterator[Ints]:
    """Waits of a region that follow each other on a track, each with what is done with what it
    brings: units x spans.

    That is what follows every one of them. What follows only some, or the last one, may need all of
    them: it stays.
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


def _without_launch_order(graph: Graph) -> Graph | None:
    """Every track follows that of its block and warp in the launch before, where there is one."""
    spans = graph.spans
    first = np.flatnonzero((spans.previous < 0) & (graph.before < 0))
    last = np.flatnonzero(np.r_[spans.track[1:] != spans.track[:-1], True]) if len(spans) else first
    ends = {
        (int(spans.launch[i]), int(spans.block[i]), int(spans.warp[i])): i for i in last.tolist()
    }
    before, gap = graph.before.copy(), graph.gap_ns.copy()
    for i in first.tolist():
        launch = int(spans.launch[i])
        key = (int(graph.launch_before[launch]), int(spans.block[i]), int(spans.warp[i]))
        if key in ends:
            before[i] = ends[key]
            gap[i] += graph.launch_gap_ns[launch]
    if (before == graph.before).all():
        return None
    return replace(graph, before=before, gap_ns=gap)
