"""Which send of an epoch released which wait: the n-th of a (source, destination, slot) its n-th.

One send may release several waits (warps that wait for parts of one row). Where a slot has more
sends than waits, only those are joined whose times leave no choice: a wait cannot end before its
send begins. Where it has several sends and even more waits, none are joined; where records were
lost, only slots that were used once.

Within a block, warps that share an item may all have to hand it on: where a slot has not as many
sends as waits, of the sends that began before a wait ended the one that ended last has released it.
The block has one clock, and uses a slot again only when all have done with it.

Sorting one number per event is several times cheaper than joining on five columns, and flows take
most of the time in large captures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kprof.trace.columns import Columns

Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]
Rows = NDArray[np.intp]
Keys = NDArray[np.int64]
_LARGEST_KEY: Final = 1 << 62


@dataclass(frozen=True)
class Ends(Columns):
    """One side of flows as columns of shape (n,).

    Which rule, who sent to whom, in which epoch, slot and turn, when, and the event with its track.
    """

    rule: Ints
    src: Ints
    dst: Ints
    epoch: Ints
    slot: Ints
    turn: Ints
    start_ns: Ints
    end_ns: Ints
    event_id: Ints
    launch: Ints
    block: Ints
    warp: Ints
    is_selected: Bools


@dataclass(frozen=True)
class Doubt:
    """What makes a join by position doubtful: `is_lossy[rank]` if events of a rank are missing.

    `slack_ns` is how far clocks may disagree, None where they cannot be compared;
    `in_block[rule]` says where both ends have one clock.
    """

    is_lossy: Bools
    slack_ns: float | None
    in_block: Bools


def pair(sends: Ends, waits: Ends, doubt: Doubt) -> tuple[Rows, Rows]:
    """Rows of the sends and of the waits that belong together; a send has a row per wait it
    released.

    Both sides must hold whole slots. Only flows with both ends selected are returned.
    """
    count = len(sends)
    keys = _numbered(
        [
            np.concatenate([getattr(sends, name), getattr(waits, name)])
            for name in ("rule", "src", "dst", "epoch", "slot")
        ]
    )
    sent, waited = _Sorted.of(sends, keys[:count]), _Sorted.of(waits, keys[count:])
    if waits.turn.any():
        is_first = _are_of_first_turn(waited.keys, waits.turn[waited.order])
        waited = _Sorted(waits, waited.order[is_first], waited.keys[is_first])
    at, is_met = _meet(sent, waited, doubt)
    of_sends, of_waits = sent.order[at[is_met]], waited.order[is_met]
    if not (sends.is_selected.all() and waits.is_selected.all()):
        kept = sends.is_selected[of_sends] & waits.is_selected[of_waits]
        of_sends, of_waits = of_sends[kept], of_waits[kept]
    return of_sends, of_waits


@dataclass(frozen=True)
class _Sorted:
    """Ends in the order of their sorted keys; ends with the same key are in order of time."""

    ends: Ends
    order: Rows
    keys: Keys

    @staticmethod
    def of(ends: Ends, keys: Keys) -> _Sorted:
        """All ends of a side, whose keys are these."""
        order = np.argsort(keys, kind="stable")
        if _has_repeats(keys[order]):
            order = np.lexsort((ends.event_id, ends.start_ns, keys))
        return _Sorted(ends, order, keys[order])


def _meet(sends: _Sorted, waits: _Sorted, doubt: Doubt) -> tuple[Rows, Bools]:
    """For each wait, the position of its send among the sorted ones, and whether it has one."""
    at = np.searchsorted(sends.keys, waits.keys)
    if len(sends.keys) == 0:
        return at, np.zeros(len(at), np.bool_)
    if not _has_repeats(sends.keys) and not _has_repeats(waits.keys):
        at = np.minimum(at, len(sends.keys) - 1)
        return at, sends.keys[at] == waits.keys
    num_sends = np.searchsorted(sends.keys, waits.keys, side="right") - at
    nth, num_waits = _nth_of(waits.keys)
    is_met = num_sends > 0
    is_alone = num_sends == 1
    is_repeated = (num_sends > 1) | (num_waits > 1)
    is_met &= ~(is_repeated & _are_lossy(waits, doubt))
    position = at + np.where(is_alone, 0, nth)
    in_block = doubt.in_block[waits.ends.rule[waits.order]]
    if in_block.any():
        chosen = in_block & is_met & ~is_alone
        in_turn = chosen & (num_waits == num_sends)
        rows = np.flatnonzero(chosen & ~in_turn | _slots_too_early(sends, waits, position, in_turn))
        position[rows], is_met[rows] = _last_of_all(sends, waits, rows, at[rows])
    is_met &= in_block | is_alone | (num_waits <= num_sends)
    doubtful = is_met & ~in_block & ~is_alone & (num_waits < num_sends)
    if doubtful.any():
        rows = np.flatnonzero(doubtful)
        is_met[rows] = _is_only_choice(sends, waits, rows, at[rows], nth[rows], doubt.slack_ns)
    return np.where(is_met, position, 0), is_met


def _slots_too_early(sends: _Sorted, waits: _Sorted, at: Rows, chosen: Bools) -> Bools:
    """Waits of slots in which a wait ended before the send at its position began: warps that find
    their place free the first time do not wait."""
    is_early = np.zeros(len(at), np.bool_)
    rows = np.flatnonzero(chosen)
    start_ns = sends.ends.start_ns[sends.order[at[rows]]]
    is_early[rows] = waits.ends.end_ns[waits.order[rows]] < start_ns
    starts = _starts(waits.keys)
    return np.repeat(np.logical_or.reduceat(is_early, starts), _sizes(starts, len(waits.keys)))


def _last_of_all(sends: _Sorted, waits: _Sorted, rows: Rows, first: Rows) -> tuple[Rows, Bools]:
    """For each wait, of the sends of its slot that began by its end the one that ended last, and
    whether there is one. `first` is the first send of its slot."""
    begins, slot = _slots(first)
    begun = _num_begun(sends, slot, first[begins], waits.ends.end_ns[waits.order[rows]])
    latest = _latest_so_far(sends.keys, sends.ends.end_ns[sends.order])
    return latest[first + np.maximum(begun - 1, 0)], begun > 0


def _latest_so_far(keys: Keys, end_ns: Ints) -> Rows:
    """For each row, which of the rows up to it that have its key ended last."""
    count = len(keys)
    place = np.empty(count, np.int64)
    place[np.argsort(end_ns, kind="stable")] = np.arange(count)
    place += count * np.cumsum(np.r_[False, keys[1:] != keys[:-1]])
    is_latest = place == np.maximum.accumulate(place)
    return np.maximum.accumulate(np.where(is_latest, np.arange(count), 0))


def _are_lossy(waits: _Sorted, doubt: Doubt) -> Bools:
    src, dst = waits.ends.src[waits.order], waits.ends.dst[waits.order]
    known = len(doubt.is_lossy)
    return doubt.is_lossy[np.clip(src, 0, known - 1)] | doubt.is_lossy[np.clip(dst, 0, known - 1)]


def _is_only_choice(
    sends: _Sorted, waits: _Sorted, rows: Rows, first: Rows, nth: Rows, slack_ns: float | None
) -> Bools:
    """Whether times leave a wait only its n-th send. `first` is the first send of its slot.

    Joined in order, a wait and all later ones need a send each, and none can take a send that began
    after it ended. So the wait has no choice where it, or a later one, has no send to spare.
    """
    if slack_ns is None:
        return np.zeros(len(rows), np.bool_)
    begins, slot = _slots(first)
    latest_ns = waits.ends.end_ns[waits.order[rows]] + int(slack_ns)
    spare = _num_begun(sends, slot, first[begins], latest_ns) - 1 - nth
    # The minimum from here on within the slot: going backwards, each slot starts below all others.
    drop = slot.max() - slot
    step = int(np.abs(spare).max()) + 1
    least = np.minimum.accumulate((spare - 2 * step * drop)[::-1])[::-1] + 2 * step * drop
    return (least == 0) & (least[begins][slot] >= 0)


def _slots(first: Rows) -> tuple[Rows, Rows]:
    """Of waits in the order of their slots, which have their first send at `first`: where each slot
    begins, and the slot of each wait."""
    begins = _starts(first)
    return begins, np.repeat(np.arange(len(begins)), _sizes(begins, len(first)))


def _num_begun(sends: _Sorted, slot: Rows, starts_of_slots: Rows, latest_ns: Ints) -> Rows:
    """For each wait, how many sends of its slot began by `latest_ns`."""
    ends_of_slots = np.searchsorted(sends.keys, sends.keys[starts_of_slots], side="right")
    sizes = ends_of_slots - starts_of_slots
    of_slot = np.repeat(np.arange(len(sizes)), sizes)
    before = np.cumsum(sizes) - sizes
    within = np.arange(len(of_slot)) - np.repeat(before, sizes)
    began_ns = sends.ends.start_ns[sends.order[starts_of_slots[of_slot] + within]]
    is_wait = np.r_[np.zeros(len(began_ns), np.bool_), np.ones(len(slot), np.bool_)]
    order = np.lexsort((is_wait, np.r_[began_ns, latest_ns], np.r_[of_slot, slot]))
    begun = np.empty(len(order), np.intp)
    begun[order] = np.cumsum(~is_wait[order])
    return begun[len(began_ns) :] - before[slot]


def _numbered(columns: list[Ints]) -> Keys:
    """One number per distinct row."""
    keys = np.zeros(len(columns[0]), dtype=np.int64)
    size = 1
    for column in columns:
        lowest = int(column.min(initial=0))
        width = int(column.max(initial=0)) - lowest + 1
        if size * width >= _LARGEST_KEY:
            _, dense = np.unique(keys, return_inverse=True)
            keys, size = dense.astype(np.int64), len(keys) + 1
        keys = keys * width + (column - lowest)
        size *= width
    return keys


def _has_repeats(ordered: Keys) -> bool:
    return bool((ordered[1:] == ordered[:-1]).any())


def _are_of_first_turn(keys: Keys, turn: Ints) -> Bools:
    """Keep the first launch for each slot, where several launches wait for what one launch sent."""
    if len(keys) == 0:
        return np.zeros(0, np.bool_)
    starts = _starts(keys)
    lowest = np.minimum.reduceat(turn, starts)
    return turn == np.repeat(lowest, _sizes(starts, len(keys)))


def _nth_of(ordered: Keys) -> tuple[Rows, Rows]:
    """0 for the first of equal neighbours, 1 for the second, ...; and how many there are."""
    starts = _starts(ordered)
    sizes = _sizes(starts, len(ordered))
    return np.arange(len(ordered)) - np.repeat(starts, sizes), np.repeat(sizes, sizes)


def _starts(ordered: Ints) -> Rows:
    """Where equal neighbours begin."""
    return np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]][: len(ordered)])


def _sizes(starts: Rows, length: int) -> Rows:
    """How many equal neighbours begin at each place."""
    return np.diff(np.r_[starts, length])
