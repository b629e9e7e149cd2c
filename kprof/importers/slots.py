"""The FlashInfer family: one decoder for the buffers of tools that share its slots.

    u64 word 0: blocks | groups << 32; in one tool a table of blocks follows; then slots
    slot k * blocks * groups + block * groups + group: the k-th event of that block and group
    an event: a tag in the low 32 bits, %globaltimer_lo (ns, wraps after 4.29 s) in the high ones

Tags differ. Block and group are taken from the slot, not from the tag: one encoder drops the group,
and large block numbers run into other bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kprof.errors import ForeignFormatError
from kprof.importers.collector import Collector, Place, file_per_rank, unwrapped
from kprof.importers.foreign import Format, Guess
from kprof.importers.reading import read_words
from kprof.importers.sample import Sample, share

Words = NDArray[np.uint64]

_BEGIN, _END, _INSTANT, _FINAL = range(4)


@dataclass(frozen=True)
class Bits:
    """`count` bits of a tag from `shift` on."""

    shift: int
    count: int

    def of(self, tags: NDArray[np.int64]) -> NDArray[np.int64]:
        """Their values, shape (n,)."""
        return (tags >> self.shift) & ((1 << self.count) - 1)


@dataclass(frozen=True)
class Layout:
    """A tool's tags. `track` is the block and group in one number, or the block with `is_block`.

    With `is_start_bit`, bit 0 is 1 at a start and there are no instants.
    """

    event: Bits
    track: Bits
    is_block: bool = False
    is_start_bit: bool = False
    sm: Bits | None = None
    empty: int = 0
    has_table: bool = False


def slots_format(layout: Layout, sureness: float) -> Format:
    """The format of buffers with this layout; `sureness` orders layouts that fit equally."""
    return Format(
        file_per_rank(
            partial(_collect, layout),
            block="the slot",
            warp="the group of the slot",
            clock=Guess("ns of 32 bits, whose wraps are found by order"),
        ),
        partial(_sniff, layout, sureness),
        uses=("names",),
        takes_many=True,
    )


@dataclass(frozen=True)
class _Slots:
    num_blocks: int
    num_groups: int
    table: Words
    # Shape (k, blocks * groups).
    events: Words


def _slots(layout: Layout, words: Words) -> _Slots | None:
    if len(words) < 2:
        return None
    num_blocks, num_groups = int(words[0]) & 0xFFFFFFFF, int(words[0]) >> 32
    first = 1 + (num_blocks if layout.has_table else 0)
    num_tracks = num_blocks * num_groups
    if not 0 < num_tracks <= len(words) - first:
        return None
    events = words[first:]
    num_missing = -len(events) % num_tracks
    padded = np.concatenate([events, np.full(num_missing, layout.empty, words.dtype)])
    return _Slots(num_blocks, num_groups, words[1:first], padded.reshape(-1, num_tracks))


def _fits(layout: Layout, slots: _Slots) -> float:
    """The share of events whose tag agrees with their slot."""
    _, track = np.nonzero(slots.events != layout.empty)
    tags = _tags(slots.events[slots.events != layout.empty])
    expected = track // slots.num_groups if layout.is_block else track
    fits = layout.track.of(tags) == expected & ((1 << layout.track.count) - 1)
    kinds = (1 - (tags & 1)) if layout.is_start_bit else tags & 3
    if _BEGIN in kinds and _END not in kinds:
        return 0.0
    # A track begins with a begin, or with an instant.
    first = slots.events[0] != layout.empty
    starts = kinds[: int(first.sum())] != _END
    return min(share(fits), share(starts), _rising(layout, slots))


def _rising(layout: Layout, slots: _Slots) -> float:
    """The share of neighbours in a track whose times rise, with or without a wrap."""
    times = slots.events >> np.uint64(32)
    is_used = (slots.events[1:] != layout.empty) & (slots.events[:-1] != layout.empty)
    steps = (times[1:] - times[:-1]) & np.uint64(0xFFFFFFFF)
    return share((steps < 1 << 31)[is_used]) if is_used.any() else 1.0


def _tags(events: Words) -> NDArray[np.int64]:
    return (events & np.uint64(0xFFFFFFFF)).astype(np.int64)


def _sniff(layout: Layout, sureness: float, sample: Sample) -> float:
    slots = _slots(layout, sample.words("<u8"))
    fitting = _fits(layout, slots) if slots is not None else 0.0
    return sureness * fitting if fitting > 0.9 else 0.0


def _collect(layout: Layout, found: Collector, path: Path, rank: int) -> None:
    slots = _slots(layout, read_words(path, "<u8", "a buffer of slots"))
    if slots is None:
        raise ForeignFormatError(f"{path} does not begin with numbers of blocks and groups")
    origin: int | None = None
    num_events_of = (slots.events != layout.empty).sum(axis=0)
    for track in np.flatnonzero(num_events_of).tolist():
        events, num_events = slots.events[:, track], int(num_events_of[track])
        # Events behind a gap are older ones of another run.
        events = events[: int(np.argmax(np.append(events == layout.empty, True)))]
        if len(events) < num_events:
            found.left_out["events behind an empty slot"] += num_events - len(events)
        times = unwrapped(events >> np.uint64(32))
        if not len(times):
            continue
        origin = int(times[0]) if origin is None else origin
        # Tracks are within 2 s of the first one.
        times += (origin - int(times[0]) + (1 << 31)) >> 32 << 32
        tags = _tags(events)
        columns = layout.event.of(tags), tags, times
        place = _place(layout, slots, rank, track, int(tags[0]))
        for event, tag, time in zip(*(column.tolist() for column in columns), strict=True):
            _add(found, layout, place, event, tag, time)


def _place(layout: Layout, slots: _Slots, rank: int, track: int, tag: int) -> Place:
    block, group = divmod(track, slots.num_groups)
    sm: Any = 0
    if layout.has_table:
        block, sm = int(slots.table[block]) & 0xFFFFFFFF, int(slots.table[block]) >> 32
    elif layout.sm is not None:
        # The number of a large block runs into these bits.
        sm = (tag >> layout.sm.shift & 0xFF) ^ (block >> layout.track.count & 0xFF)
    return Place(rank, block, group if slots.num_groups > 1 else -1, hw_id=sm)


def _add(found: Collector, layout: Layout, place: Place, event: int, tag: int, time: int) -> None:
    kind = 1 - (tag & 1) if layout.is_start_bit else tag & 3
    if kind == _BEGIN:
        found.begin(place, found.name(event), time, event)
    elif kind == _END:
        found.end(place, time, event)
    else:
        found.mark(place, found.name(event) if kind == _INSTANT else "finalize", time)
