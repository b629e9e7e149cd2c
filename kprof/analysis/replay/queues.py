"""Queues between the warps of a block: edits with more producers, more places or larger items.

    producer    room(0)   fill(2)    room(1)   fill(3)      room(i) waits until item i is used up
    consumer    take(2)   use(2)     take(3)   use(3)       take(i) waits until item i is filled

The records show the roles. A track that hands on the item that it waited for is a consumer. A track
that hands on a later item is a producer, ahead by as many items as the queue has places. Every
block has its own queues.

A slot is the number of an item, or of a place; a place is used for one item after the other.
Several warps may take an item; its place is free when the last of them has used it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kprof.analysis.replay.graph import Graph
from kprof.analysis.replay.replay import Change, Edit
from kprof.analysis.replay.spans import Ints

# Every edit doubles something: producers, places, or the size of an item.
_TIMES: Final = 2


@dataclass(frozen=True)
class Queue:
    """The queue that one region fills, in all blocks.

    item             the item of every span (-1: none)
    region           the region that fills it
    fills, begins    the spans that fill it, and for each the first span of the work on its item
    rooms, depth     the waits for a free place, and how many places each found taken
    takes            the waits for items
    """

    item: Ints
    region: int
    fills: Ints
    begins: Ints
    rooms: Ints
    depth: Ints
    takes: Ints


def queues_of(graph: Graph) -> list[Queue]:
    """All queues of a graph, by the region that fills them."""
    waits = _waits_in_block(graph)
    handed = np.unique(graph.spans.region[graph.releaser[waits]])
    sends = np.flatnonzero(np.isin(graph.spans.region, handed) & (graph.spans.slot >= 0))
    item = _items(graph, sends)
    item[waits] = item[graph.releaser[waits]]
    following = _next_item(graph, sends, item)[waits]
    # Who hands nothing on afterwards takes.
    ahead = np.where(following >= 0, following - item[waits], 0)
    takes, rooms = waits[ahead == 0], waits[ahead > 0]
    regions = np.unique(graph.spans.region[graph.releaser[takes]]).tolist()
    return [_queue(graph, item, region, takes, rooms, ahead[ahead > 0]) for region in regions]


def _items(graph: Graph, sends: Ints) -> Ints:
    """The item of every span: its slot; for `sends`, plus the number of slots for each earlier use
    of the slot."""
    spans = graph.spans
    items = spans.slot.astype(np.int64)
    if not len(sends):
        return items
    _, block = np.unique(spans.launch[sends] << 32 | spans.block[sends], return_inverse=True)
    num_slots = np.zeros(block.max() + 1, np.int64)
    np.maximum.at(num_slots, block, spans.slot[sends] + 1)
    # If three warps use an item, their region has three times the spans of the region that fills.
    _, role = np.unique(block << 16 | spans.region[sends], return_inverse=True)
    count = np.bincount(role)
    least = np.full(block.max() + 1, len(spans))
    np.minimum.at(least, block, count[role])
    shared = np.maximum(1, np.rint(count[role] / least[block])).astype(np.int64)
    order = np.lexsort((spans.start[sends], spans.slot[sends], role))
    same = (np.diff(role[order]) == 0) & (np.diff(spans.slot[sends][order]) == 0)
    first = np.maximum.accumulate(np.where(np.r_[True, ~same], np.arange(len(order)), 0))
    turn = np.empty(len(order), np.int64)
    turn[order] = (np.arange(len(order)) - first) // shared[order]
    items[sends] = turn * num_slots[block] + spans.slot[sends]
    return items


def _waits_in_block(graph: Graph) -> Ints:
    """Waits that another warp of the same block releases."""
    spans = graph.spans
    waits = np.flatnonzero((graph.releaser >= 0) & (graph.releaser == spans.send))
    sends = spans.send[waits]
    is_near = (spans.launch[sends] == spans.launch[waits]) & (spans.slot[waits] >= 0)
    is_near &= (spans.block[sends] == spans.block[waits]) & (spans.warp[sends] != spans.warp[waits])
    return waits[is_near]


def _next_item(graph: Graph, sends: Ints, item: Ints) -> Ints:
    """For each span the item of the next span of `sends` on its track; -1 if none follows."""
    track, count = graph.spans.track, len(graph.spans)
    places = np.full(count, count)
    places[sends] = sends
    following = np.minimum.accumulate(places[::-1])[::-1]
    known = np.minimum(following, count - 1)
    return np.where((following < count) & (track[known] == track), item[known], -1)


def _queue(graph: Graph, item: Ints, region: int, takes: Ints, rooms: Ints, depth: Ints) -> Queue:
    spans = graph.spans
    fills = np.flatnonzero(spans.region == region)
    # Whatever a producer does after an item belongs to the next item.
    is_new = np.r_[True, spans.track[fills][1:] != spans.track[fills][:-1]]
    firsts = np.searchsorted(spans.track, spans.track[fills])
    begins = np.where(is_new, firsts, np.r_[0, fills[:-1] + 1])
    is_ours = np.isin(spans.track[rooms], spans.track[fills])
    taken = takes[spans.region[graph.releaser[takes]] == region]
    return Queue(item, region, fills, begins, rooms[is_ours], depth[is_ours], taken)


def with_more_producers(graph: Graph, queue: Queue) -> Graph:
    """Twice as many warps fill the queue in turn: an item follows the one that many items
    before."""
    spans, fills = graph.spans, queue.fills
    before, gap = graph.before.copy(), graph.gap_ns.copy()
    place = spans.launch[fills] << 32 | spans.block[fills]
    order = np.lexsort((queue.item[fills], place))
    for part in np.split(order, np.flatnonzero(np.diff(place[order])) + 1):
        ours, begins = fills[part], queue.begins[part]
        num_producers = _TIMES * len(np.unique(spans.track[ours]))
        later = np.arange(len(part)) >= num_producers
        before[begins[later]] = ours[:-num_producers] if later.any() else before[:0]
        # The new warps begin when the others do.
        firsts = np.searchsorted(spans.track, spans.track[ours[~later]])
        before[begins[~later]] = graph.before[firsts]
        gap[begins[~later]] = graph.gap_ns[firsts]
    return replace(graph, before=before, gap_ns=gap)


def with_more_places(graph: Graph, queue: Queue) -> Graph:
    """The queue is twice as deep: a wait for a place is a wait for an item that was used
    earlier."""
    spans, rooms = graph.spans, queue.rooms
    releaser = graph.releaser.copy()
    users = np.unique(spans.region[releaser[rooms]])
    uses = np.flatnonzero(np.isin(spans.region, users))
    # If several warps use an item, the last one counts.
    uses = uses[np.argsort(spans.end[uses], kind="stable")]
    found = dict(zip(_keys(graph, uses, queue.item[uses]), uses.tolist(), strict=True))
    earlier = queue.item[rooms] - (_TIMES - 1) * queue.depth
    releaser[rooms] = [found.get(key, -1) for key in _keys(graph, rooms, earlier)]
    return replace(graph, releaser=releaser)


def _keys(graph: Graph, chosen: Ints, item: Ints) -> list[tuple[int, int, int]]:
    spans = graph.spans
    columns = (spans.launch[chosen].tolist(), spans.block[chosen].tolist(), item.tolist())
    return list(zip(*columns, strict=True))


def with_larger_items(graph: Graph, queue: Queue) -> Edit:
    """Two items in one: every second item needs no look at a flag and no time between spans."""
    spans = graph.spans
    ours = np.isin(spans.track, spans.track[np.concatenate([queue.takes, queue.fills])])
    odd = np.flatnonzero(ours & (queue.item >= 0) & (queue.item % _TIMES != 0))
    looks = odd[graph.is_wait[odd]]
    gaps = odd[spans.previous[odd] >= 0]
    return Edit(
        own=Change(looks, graph.own_ns[looks]),
        gap=Change(gaps, np.maximum(0.0, graph.gap_ns[gaps])),
    )


def changes_of(graph: Graph) -> Iterator[tuple[str, int, Graph, Edit]]:
    """Every what-if of every queue: name, region that fills, graph and edit."""
    for queue in queues_of(graph):
        yield "few_producers", queue.region, with_more_producers(graph, queue), Edit()
        if len(queue.rooms):
            yield "shallow_queue", queue.region, with_more_places(graph, queue), Edit()
        yield "small_items", queue.region, graph, with_larger_items(graph, queue)
