"""What every span of some calls waits for, as arrays.

    track order     a span starts a gap after the one before it on its track
    launch order    the first span of a track starts a lead after its launch; a launch starts after
                    the one before it on its rank has ended, or with the call
    waves           a block that found no room starts after the block whose place it took
    flow            a wait ends when its data has arrived from the send, maybe before it looks
    barrier         all leave after the last one entered
    lock            the next one gets it when the one before lets it go

A span's end is the later one of what its own track and what the other side allow:

    end = max(end of what is before + gap + own time, end of what releases it + travel)

The own time of a wait that was held up is one look at the flag; everything else is its own time. So
a run of the graph as it is gives every measured end, to the nanosecond.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

import numpy as np

from kprof.analysis.explain.spans import Bools, Floats, Ints, Spans

# Of a transfer's time a wait for it covers a tenth or more, else it is not taken for a wait for
# that transfer.
_LEAST_PART_SEEN: Final = 10
# What takes so many times as long as a look usually does is held up, however long the transfer.
_SURELY_HELD: Final = 8
# Of links, so many are the best ones.
_BEST: Final = 0.1
_ALL_LEAVE_TOGETHER: Final = 0.7
_SHARE_OF_BARRIERS: Final = 0.95


@dataclass(frozen=True)
class Graph:
    """Columns over spans, and over launches; indices are -1 where there is nothing.

    `before` is the span that a span follows: on its track, or of the block whose place its block
    took. `releaser` is the span whose end lets it end, `barrier` the number of its barrier.
    `own_ns`, `gap_ns`, `travel_ns` are the times of the module's formula; for members of a barrier
    `travel_ns` counts from the opening. `launch_before` is the launch before on the rank,
    `launch_gap_ns` the time between them, or since the call's begin.
    """

    spans: Spans
    before: Ints
    releaser: Ints
    is_held: Bools
    is_wait: Bools
    barrier: Ints
    own_ns: Floats
    gap_ns: Floats
    travel_ns: Floats
    launch_before: Ints
    launch_gap_ns: Floats
    launch_rank: Ints
    launch_call: Ints
    call_start: Ints
    call_end: Ints


def build_graph(spans: Spans, bound_ns: float = 0.0) -> Graph:
    """The dependencies of spans; `bound_ns` is how far off two clocks may be."""
    is_wait = spans.is_of("wait", "sync")
    barrier = _barriers(spans, bound_ns)
    is_held = _held(spans)
    releaser = np.where(_is_released(spans), spans.send, -1)
    lock_releaser, was_queued = _locks(spans, barrier)
    releaser = np.where(lock_releaser >= 0, lock_releaser, releaser)
    is_held = np.where(lock_releaser >= 0, was_queued, is_held & (releaser >= 0))
    duration = (spans.end - spans.start).astype(float)
    can_be_held = is_held | (barrier >= 0)
    look = _looks(spans, is_wait & ~can_be_held, duration)
    own = np.where(can_be_held, np.minimum(look, duration), duration)
    before = np.where(spans.previous >= 0, spans.previous, _waves(spans))
    launch_start, launch_end, call_start, call_end = _windows(spans)
    launch_before = _launch_order(spans, launch_start, launch_end)
    first_of_launch = _first(spans.launch)
    origin = np.where(
        launch_before >= 0, launch_end[launch_before], call_start[spans.call[first_of_launch]]
    )
    base = np.where(before >= 0, spans.end[before], launch_start[spans.launch])
    return Graph(
        spans=spans,
        before=before,
        releaser=releaser,
        is_held=is_held,
        is_wait=is_wait,
        barrier=barrier,
        own_ns=own,
        gap_ns=(spans.start - base).astype(float),
        travel_ns=_travel(spans, releaser, is_held, barrier),
        launch_before=launch_before,
        launch_gap_ns=(launch_start - origin).astype(float),
        launch_rank=spans.rank[first_of_launch],
        launch_call=spans.call[first_of_launch],
        call_start=call_start,
        call_end=call_end,
    )


def _first(groups: Ints) -> Ints:
    """Index of the first element of every number of a sorted column."""
    return np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]]) if len(groups) else groups[:0]


def _shortest(groups: Ints, values: Floats) -> Floats:
    """For every element the smallest value of its group."""
    smallest = np.full(int(groups.max(initial=0)) + 1, np.inf)
    np.minimum.at(smallest, groups, values)
    chosen: Floats = smallest[groups]
    return chosen


def _looks(spans: Spans, is_look: Bools, duration: Floats) -> Floats:
    """What one look at a flag takes: the shortest wait of the region that was not held up. Where
    all were, even the shortest one says nothing: then that of all regions."""
    shortest = np.full(len(spans.region_names), np.inf)
    np.minimum.at(shortest, spans.region[is_look], duration[is_look])
    known = np.isfinite(shortest)
    shortest[~known] = shortest[known].min(initial=np.inf) if known.any() else 0.0
    looks: Floats = shortest[spans.region]
    return looks


def _windows(spans: Spans) -> tuple[Ints, Ints, Ints, Ints]:
    """First start and last end of every launch and of every call."""
    results = []
    for groups in (spans.launch, spans.call):
        count = int(groups.max(initial=-1)) + 1
        first = np.full(count, np.iinfo(np.int64).max)
        last = np.full(count, np.iinfo(np.int64).min)
        np.minimum.at(first, groups, spans.start)
        np.maximum.at(last, groups, spans.end)
        results += [first, last]
    launch_start, launch_end, call_start, call_end = results
    return launch_start, launch_end, call_start, call_end


def _launch_order(spans: Spans, starts: Ints, ends: Ints) -> Ints:
    """Of the launches of a rank that ended before one began, the last one; within a call."""
    first = _first(spans.launch)
    rank, call = spans.rank[first], spans.call[first]
    before = np.full(len(first), -1, dtype=np.int64)
    groups: dict[tuple[int, int], list[int]] = {}
    for launch, key in enumerate(zip(call.tolist(), rank.tolist(), strict=True)):
        groups.setdefault(key, []).append(launch)
    for members in groups.values():
        for launch in members:
            ended = [m for m in members if m != launch and ends[m] <= starts[launch]]
            before[launch] = max(ended, key=lambda m: int(ends[m]), default=-1)
    return before


def _is_released(spans: Spans) -> Bools:
    """A wait that ended before its send began was not released by it; it keeps its duration."""
    released: Bools = (spans.send >= 0) & (spans.start[spans.send] < spans.end)
    return released


def _held(spans: Spans) -> Bools:
    """Waits that began before their send ended, or took clearly longer than one look."""
    duration = spans.end - spans.start
    shortest = _shortest(spans.region, duration.astype(float))
    sent = spans.end[spans.send]
    is_part = _LEAST_PART_SEEN * duration >= spans.end - sent
    is_long = (duration > 2 * shortest + 1) & is_part
    is_long |= duration > _SURELY_HELD * _usual_look(
        spans, (spans.send >= 0) & (sent <= spans.start)
    )
    held: Bools = (spans.send >= 0) & (is_long | (sent > spans.start))
    return held


def _usual_look(spans: Spans, was_sent: Bools) -> Floats:
    """What a look at a flag that was set long before takes in a region.

    Of many such waits, few are held up.
    """
    duration = (spans.end - spans.start).astype(float)
    medians = grouped_median(spans.region[was_sent], duration[was_sent], len(spans.region_names))
    usual: Floats = np.where(np.isnan(medians), np.inf, medians)[spans.region]
    return usual


def _travel(spans: Spans, releaser: Ints, is_held: Bools, barrier: Ints) -> Floats:
    """Time from what releases a span to its end.

    Of hidden transfers the usual one, and no more than fits.
    """
    travel = np.zeros(len(spans))
    waits = np.flatnonzero(releaser >= 0)
    elapsed = (spans.end[waits] - spans.end[releaser[waits]]).astype(float)
    seen = is_held[waits]
    link = spans.region[waits] << 32 | spans.rank[releaser[waits]] << 16 | spans.rank[waits]
    usual = _usual(link, elapsed, seen)
    travel[waits] = np.where(seen, elapsed, np.minimum(usual, elapsed))
    members = np.flatnonzero(barrier >= 0)
    opened = np.full(int(barrier.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(opened, barrier[members], spans.start[members])
    travel[members] = spans.end[members] - opened[barrier[members]]
    return travel


def _usual(groups: Ints, values: Floats, seen: Bools) -> Floats:
    """The median of the seen values of an element's group; of a group that has none that of the
    best groups: nothing says that it is as slow as those that others had to wait for. 0 where no
    group has any."""
    _, inverse = np.unique(groups, return_inverse=True)
    count = int(inverse.max(initial=-1)) + 1
    medians = grouped_median(inverse[seen], values[seen], count)
    is_known = ~np.isnan(medians)
    best = float(np.quantile(medians[is_known], _BEST)) if is_known.any() else 0.0
    usual: Floats = np.where(is_known, medians, best)[inverse]
    return usual


def grouped_median(groups: Ints, values: Floats, count: int) -> Floats:
    """The lower median of the values of every group; NaN for empty ones."""
    order = np.lexsort((values, groups))
    sizes = np.bincount(groups, minlength=count)
    firsts = np.cumsum(sizes) - sizes
    result = np.full(count, np.nan)
    filled = sizes > 0
    result[filled] = values[order][firsts[filled] + (sizes[filled] - 1) // 2]
    return result


def _occurrences(spans: Spans, chosen: Ints) -> Ints:
    """The how manieth on its track every one of the chosen spans is."""
    track = spans.track[chosen]
    order = np.arange(len(chosen))
    starts = np.r_[True, track[1:] != track[:-1]]
    return order - np.maximum.accumulate(np.where(starts, order, 0))


def _barriers(spans: Spans, bound_ns: float) -> Ints:
    """Number the barriers: the n-th sync span of every track, over all ranks where all leave after
    the last one enters, as far as the clocks can tell, else over each rank where that holds there,
    else none."""
    groups = np.full(len(spans), -1, dtype=np.int64)
    number = 0
    for region, category in enumerate(spans.categories):
        if category != "sync":
            continue
        chosen = np.flatnonzero((spans.region == region) & (spans.send < 0))
        if len(chosen) < 2:
            continue
        kernel = _kernel_numbers(spans)[spans.launch[chosen]]
        turn = (spans.call[chosen] * (kernel.max() + 1) + kernel) << 20 | _occurrences(
            spans, chosen
        )
        for keys, bound in ((turn, bound_ns), (turn << 16 | spans.rank[chosen], 0.0)):
            _, inverse = np.unique(keys, return_inverse=True)
            if _all_leave_together(spans, chosen, inverse, bound):
                groups[chosen] = number + inverse
                number += int(inverse.max()) + 1
                break
    return groups


def _kernel_numbers(spans: Spans) -> Ints:
    """A number per kernel, by launch."""
    _, numbers = np.unique(
        np.array(spans.launch_kernel, dtype=object).astype(str), return_inverse=True
    )
    return numbers.astype(np.int64)


def _all_leave_together(spans: Spans, chosen: Ints, inverse: Ints, bound_ns: float) -> bool:
    """After the last one entered, and at about the same time.

    Holders of a lock leave as far apart as they wait.
    """
    starts, ends = spans.start[chosen], spans.end[chosen]
    count = int(inverse.max()) + 1
    last_enter = np.full(count, np.iinfo(np.int64).min)
    last_leave = last_enter.copy()
    first_leave = np.full(count, np.iinfo(np.int64).max)
    longest = np.zeros(count, dtype=np.int64)
    np.maximum.at(last_enter, inverse, starts)
    np.maximum.at(last_leave, inverse, ends)
    np.minimum.at(first_leave, inverse, ends)
    np.maximum.at(longest, inverse, ends - starts)
    if (last_leave - first_leave).sum() > _ALL_LEAVE_TOGETHER * longest.sum():
        return False
    is_after = (first_leave + bound_ns >= last_enter).mean() >= _SHARE_OF_BARRIERS
    return bool((np.bincount(inverse) > 1).all() and is_after)


def _locks(spans: Spans, barrier: Ints) -> tuple[Ints, Bools]:
    """For every span that takes a lock, the last span of the holder before; whether it waited."""
    releaser = np.full(len(spans), -1, dtype=np.int64)
    was_queued = np.zeros(len(spans), dtype=bool)
    chosen = np.flatnonzero(spans.is_of("sync") & (barrier < 0) & (spans.send < 0))
    if len(chosen) < 2:
        return releaser, was_queued
    key = spans.call[chosen] << 44 | spans.rank[chosen] << 28 | spans.region[chosen] << 16
    key += np.maximum(spans.slot[chosen], 0) & 0xFFFF
    order = np.lexsort((spans.end[chosen], key))
    duration = spans.end - spans.start
    shortest = _shortest(spans.region, duration.astype(float))
    for one, other in itertools.pairwise(order.tolist()):
        if key[one] != key[other]:
            continue
        holder, waiter = int(chosen[one]), int(chosen[other])
        was_queued[waiter] = duration[waiter] > 2 * shortest[waiter] + 1
        most = len(spans) if was_queued[waiter] else 1
        last = _last_held(spans, holder, int(spans.end[waiter]), most)
        if spans.track[holder] != spans.track[waiter] and (last != holder or was_queued[waiter]):
            releaser[waiter] = last
    return releaser, was_queued


def _last_held(spans: Spans, holder: int, released: int, most: int) -> int:
    """The last span of the holder's track that ended before the lock was someone else's; of the
    first `most` after it got the lock."""
    last = holder
    following = holder + 1
    while (
        following < min(len(spans), holder + 1 + most)
        and spans.previous[following] == last
        and spans.end[following] <= released
    ):
        last = following
        following += 1
    return last


def _waves(spans: Spans) -> Ints:
    """For the first span of every track of a block that found no room at first: the last span of
    the block whose place it took; -1 for all others."""
    before = np.full(len(spans), -1, dtype=np.int64)
    first = _first(spans.track)
    if len(first) == 0:
        return before
    last = np.r_[first[1:], len(spans)] - 1
    launches = spans.launch[first]
    for begin, end in _runs(launches):
        _order_waves(spans, first[begin:end], last[begin:end], before)
    return before


def _runs(values: Ints) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.r_[True, values[1:] != values[:-1], True]).tolist()
    return list(itertools.pairwise(edges))


def _order_waves(spans: Spans, first: Ints, last: Ints, before: Ints) -> None:
    starts, ends = spans.start[first], spans.end[last]
    if ends.min() > starts.max():
        return
    blocks = numbered_blocks = np.unique(spans.block[first], return_inverse=True)[1]
    count = int(numbered_blocks.max()) + 1
    block_start = np.full(count, np.iinfo(np.int64).max)
    block_end = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(block_start, blocks, starts)
    np.maximum.at(block_end, blocks, ends)
    late = _took_place_of(block_start, block_end, spans.processor[first[_first(blocks)]])
    last_span = np.zeros(count, dtype=np.int64)
    last_span[blocks[np.argsort(ends, kind="stable")]] = last[np.argsort(ends, kind="stable")]
    for track, block in enumerate(blocks.tolist()):
        if late[block] >= 0:
            before[first[track]] = last_span[late[block]]


def _took_place_of(starts: Ints, ends: Ints, processor: Ints) -> list[int]:
    """For every block, the one whose place it took on the same processor, or -1.

    Only after all places had been taken.
    """
    count = len(starts)
    events = sorted([(int(t), 1) for t in starts] + [(int(t), 0) for t in ends])
    running = most = 0
    for _, is_start in events:
        running += 1 if is_start else -1
        most = max(most, running)
    late = [-1] * count
    if most == count:
        return late
    order = np.argsort(starts, kind="stable").tolist()
    free: list[int] = []
    by_end = np.argsort(ends, kind="stable").tolist()
    ended = 0
    for position, block in enumerate(order):
        while ended < count and ends[by_end[ended]] <= starts[block]:
            free.append(by_end[ended])
            ended += 1
        if position < most or not free:
            continue
        same = [other for other in free if processor[other] == processor[block]]
        if same:
            late[block] = max(same, key=lambda other: int(ends[other]))
            free.remove(late[block])
    return late
