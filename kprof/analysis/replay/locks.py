"""Who holds a lock when, and who gets it next.

Spans of category sync take a lock if they end one after the other; several spans that end at once
are barriers of single blocks. So do waits that name nobody, where each of them ends as soon as the
one before has done something: who writes a kernel may call that a wait. The holder keeps the lock
for some of the spans that follow. If the recorded holders got the lock in the order in which they
came, a replay serves it first come, first served. If not, the next holder cannot be predicted, and
the recorded order stays.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

import numpy as np

from kprof.analysis.replay.columns import grouped_median, shortest_of
from kprof.analysis.replay.spans import Bools, Floats, Ints, Spans

# A wait for a transfer covers at least a tenth of its time; a wait for a lock, of the time since
# the holder got it.
LEAST_PART_SEEN: Final = 10
_LEAST_PART_OF_HANDING_ON: Final = 0.25
# Of waits: so many, and this part of them, show that a lock is handed on.
_ENOUGH_HANDED_ON: Final = 8
_NEARLY_ALL: Final = 0.9


@dataclass(frozen=True)
class Locks:
    """Columns over spans that take a lock: the last span of the holder before, whether it waited
    for that, the number of its queue if the lock is served first come, first served, and the last
    span for which it holds the lock. -1 means none."""

    releaser: Ints
    was_queued: Bools
    queue: Ints
    held_until: Ints


def locks_of(spans: Spans, barrier: Ints) -> Locks:
    """The locks of some calls. Spans in a `barrier` take none."""
    nothing = np.full(len(spans), -1, dtype=np.int64)
    locks = Locks(nothing.copy(), np.zeros(len(spans), dtype=bool), nothing.copy(), nothing.copy())
    is_sync = spans.is_of("sync")
    chosen = np.flatnonzero((is_sync | _names_nobody(spans)) & (barrier < 0) & (spans.send < 0))
    if len(chosen) < 2:
        return locks
    key = spans.call[chosen] << 44 | spans.rank[chosen] << 28 | spans.region[chosen] << 16
    key += np.maximum(spans.slot[chosen], 0) & 0xFFFF
    order = np.lexsort((spans.end[chosen], key))
    groups = np.split(chosen[order], np.flatnonzero(np.diff(key[order])) + 1)
    duration = spans.end - spans.start
    shortest = shortest_of(spans.region, duration.astype(float))
    is_long = duration > 2 * shortest + 1
    holders = [
        members
        for members in groups
        if _leave_in_turn(spans, members, shortest)
        and (is_sync[members[0]] or _is_handed_on(spans, members, is_long, shortest))
    ]
    for members in holders:
        _hand_on(spans, members.tolist(), is_long, locks)
    _queue_up(spans, holders, barrier, locks)
    return locks


def _leave_in_turn(spans: Spans, members: Ints, shortest: Floats) -> bool:
    """Whether spans end as far apart as handing on a lock takes: at least a part of taking a free
    lock, which is the shortest span of the region."""
    apart = np.diff(spans.end[members])
    return len(apart) > 0 and bool(
        np.median(apart) >= _LEAST_PART_OF_HANDING_ON * shortest[members[0]]
    )


def _names_nobody(spans: Spans) -> Bools:
    """Which waits are of regions of which none has a peer or a send."""
    has_other = spans.names_peer | (spans.send >= 0)
    others = np.bincount(spans.region, weights=has_other, minlength=len(spans.region_names))
    return spans.is_of("wait") & (others[spans.region] == 0)


def _is_handed_on(spans: Spans, members: Ints, is_long: Bools, shortest: Floats) -> bool:
    """Whether nearly all long waits end as soon as the holder before has done its work: twice the
    time in which a free lock is taken, at most."""
    after = []
    for holder, waiter in itertools.pairwise(members.tolist()):
        if not is_long[waiter]:
            continue
        last = _last_held(spans, holder, int(spans.end[waiter]), len(spans))
        if last != holder:
            after.append(spans.end[waiter] - spans.end[last])
    is_enough = len(after) >= _ENOUGH_HANDED_ON
    soon_ns = 2 * max(float(shortest[members[0]]), spans.step_ns)
    return is_enough and bool(np.mean(np.array(after) <= soon_ns) >= _NEARLY_ALL)


def _hand_on(spans: Spans, members: list[int], is_long: Bools, locks: Locks) -> None:
    """Fill in who hands the lock to whom, as recorded."""
    for holder, waiter in itertools.pairwise(members):
        last = _last_held(spans, holder, int(spans.end[waiter]), len(spans))
        locks.was_queued[waiter] = is_long[waiter] and _was_held(spans, holder, last, waiter)
        if not locks.was_queued[waiter]:
            last = _last_held(spans, holder, int(spans.end[waiter]), 1)
        locks.held_until[holder] = last
        is_other = spans.track[holder] != spans.track[waiter]
        if is_other and locks.was_queued[waiter]:
            locks.releaser[waiter] = last


def _was_held(spans: Spans, holder: int, last: int, waiter: int) -> bool:
    """Whether the lock was taken when the waiter came. If no span of the holder shows that, the
    wait must cover a part of the time since the holder got the lock."""
    if last != holder:
        return bool(spans.end[last] > spans.start[waiter])
    waited = spans.end[waiter] - spans.start[waiter]
    return bool(LEAST_PART_SEEN * waited >= spans.end[waiter] - spans.end[holder])


def _last_held(spans: Spans, holder: int, released: int, most: int) -> int:
    """The last span of the holder's track that ended before someone else had the lock, among the
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


def _queue_up(spans: Spans, holders: list[Ints], barrier: Ints, locks: Locks) -> None:
    """Number the locks that are served first come, first served.

    How long a block holds a lock shows only if another one waits for it. Otherwise it holds the
    lock for the usual number of spans.
    """
    seen = [pair for members in holders for pair in itertools.pairwise(members.tolist())]
    seen = [pair for pair in seen if locks.was_queued[pair[1]]]
    if not seen:
        return
    had = np.array([holder for holder, _ in seen])
    count = (locks.held_until[had] - had).astype(float)
    usual = grouped_median(spans.region[had], count, len(spans.region_names))
    number = 0
    for members in holders:
        most = usual[spans.region[members[0]]]
        if np.isnan(most) or not _is_fair(spans, members):
            continue
        until = [*spans.end[members[1:]].tolist(), np.iinfo(np.int64).max]
        last = locks.held_until[members]
        for i, (holder, released) in enumerate(zip(members.tolist(), until, strict=True)):
            if i + 1 == len(members) or not locks.was_queued[members[i + 1]]:
                last[i] = _last_held(spans, holder, released, int(most))
        if _waits_meanwhile(spans, members, last, barrier):
            continue
        locks.queue[members] = number
        locks.held_until[members] = last
        locks.releaser[members[1:]] = last[:-1]
        number += 1


def _is_fair(spans: Spans, members: Ints) -> bool:
    """Whether every track comes once, and gets the lock in the order of coming."""
    is_once = len(np.unique(spans.track[members])) == len(members) > 1
    return is_once and bool((np.diff(spans.start[members]) >= 0).all())


def _waits_meanwhile(spans: Spans, members: Ints, last: Ints, barrier: Ints) -> bool:
    """Whether a holder waits for something else while it holds the lock."""
    held = [np.arange(one + 1, end + 1) for one, end in zip(members, last, strict=True)]
    at = np.concatenate(held)
    return bool(((spans.send[at] >= 0) | (barrier[at] >= 0) | spans.is_of("sync")[at]).any())
