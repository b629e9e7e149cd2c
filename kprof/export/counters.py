"""Counters of a rank: active blocks, waiting blocks, and bytes in flight.

blocks active     between the first and the last event of a block within a launch
blocks waiting    blocks in which at least one span of category wait is open
bytes in flight   bytes of send spans, from their start until the wait that they released ended
                  (or their own end, where no wait was recorded)
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.export.flows import Flows
from kprof.export.source import RawEvents
from kprof.regions import Category, Kind, Region

ACTIVE: Final = "active blocks"
WAITING: Final = "waiting blocks"
IN_FLIGHT: Final = "bytes in flight"
UNITS: Final = {ACTIVE: "blocks", WAITING: "blocks", IN_FLIGHT: "bytes"}

# With more events than this, a rank's counters are sampled: exact steps would be as large as the
# events.
_MAX_EXACT_EVENTS: Final = 1 << 17
_NUM_SAMPLES: Final = 1 << 16


# A counter as changes, in any order: the times at which it grows, and by how much.
Steps = tuple[NDArray[np.int64], NDArray[np.int64]]
_NO_STEPS: Final[Steps] = (np.zeros(0, np.int64), np.zeros(0, np.int64))


class RankCounters:
    """Collects the counters of one rank piece by piece. A piece has whole blocks."""

    def __init__(self, names: tuple[Region, ...], num_events: int, last_ns: int) -> None:
        self._names = names
        self._is_wait = np.array([region.category is Category.WAIT for region in names])
        self._is_span = np.array([region.kind is Kind.SPAN for region in names])
        self._last_ns = last_ns
        self._bin_ns = max(1, last_ns // _NUM_SAMPLES) if num_events > _MAX_EXACT_EVENTS else 1
        self._steps: dict[str, list[Steps]] = {ACTIVE: [], WAITING: [], IN_FLIGHT: []}

    @property
    def is_sampled(self) -> bool:
        """Whether the counters are sampled, not exact."""
        return self._bin_ns > 1

    def add(self, events: RawEvents, flows: Flows) -> None:
        """Count a piece."""
        if len(events) == 0:
            return
        self._add(ACTIVE, _activity(events))
        self._add(WAITING, _block_union(events, self._is_wait & self._is_span))
        for name, region in enumerate(self._names):
            field = region.field("bytes")
            if field is not None and region.category is Category.SEND:
                self._add(IN_FLIGHT, _bytes(events, name, field.shift, field.mask, flows))

    def points(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Times and values of every counter that was ever above 0."""
        merged = {name: _merge(steps) for name, steps in self._steps.items()}
        return {
            name: (start_ns, np.cumsum(deltas))
            for name, (start_ns, deltas) in merged.items()
            if len(start_ns)
        }

    def _add(self, name: str, steps: Steps) -> None:
        """Keep the changes. If sampled, one per bin, at the time of its last change."""
        times, deltas = steps
        if self._bin_ns > 1 and len(times):
            order = np.argsort(times)
            times, deltas = times[order], deltas[order]
            bins = times // self._bin_ns
            lasts = np.flatnonzero(np.r_[bins[1:] != bins[:-1], True])
            sample_ns = np.minimum((bins[lasts] + 1) * self._bin_ns - 1, self._last_ns)
            steps = sample_ns, np.diff(np.cumsum(deltas)[lasts], prepend=0)
        self._steps[name].append(steps)


def _merge(steps: list[Steps]) -> Steps:
    """Merge changes at the same time, sort by time, drop changes of 0."""
    if not steps:
        return _NO_STEPS
    times, deltas = (np.concatenate(column) for column in zip(*steps, strict=True))
    unique, places = np.unique(times, return_inverse=True)
    sums = np.zeros(len(unique), dtype=np.int64)
    np.add.at(sums, places, deltas)
    return unique[sums != 0], sums[sums != 0]


def _intervals(
    start_ns: NDArray[np.int64], end_ns: NDArray[np.int64], weight: NDArray[np.int64]
) -> Steps:
    return np.concatenate([start_ns, end_ns]), np.concatenate([weight, -weight])


def _activity(events: RawEvents) -> Steps:
    order = np.lexsort((events.launch, events.block))
    block, launch = events.block[order], events.launch[order]
    firsts = np.flatnonzero(np.r_[True, (block[1:] != block[:-1]) | (launch[1:] != launch[:-1])])
    starts = np.minimum.reduceat(events.start_ns[order], firsts)
    ends = np.maximum.reduceat(events.end_ns[order], firsts)
    return _intervals(starts, ends, np.ones(len(firsts), np.int64))


def _block_union(events: RawEvents, is_counted: NDArray[np.bool_]) -> Steps:
    """Intervals in which at least one of the block's counted spans is open."""
    rows = np.flatnonzero(is_counted[events.name])
    if len(rows) == 0:
        return _NO_STEPS
    rows = rows[np.lexsort((events.start_ns[rows], events.block[rows]))]
    block, starts, ends = events.block[rows], events.start_ns[rows], events.end_ns[rows]
    # Blocks lie one after the other on one long axis, so intervals of two blocks never touch.
    place = np.cumsum(np.r_[0, block[1:] != block[:-1]])
    shift = place * (int(ends.max()) + 1)
    reach = np.maximum.accumulate(ends + shift)
    firsts = np.flatnonzero(np.r_[True, starts[1:] + shift[1:] > reach[:-1]])
    lasts = np.r_[firsts[1:], len(rows)] - 1
    return _intervals(
        starts[firsts], reach[lasts] - shift[lasts], np.ones(len(firsts), dtype=np.int64)
    )


def _bytes(events: RawEvents, name: int, shift: int, mask: int, flows: Flows) -> Steps:
    rows = np.flatnonzero(events.name == name)
    sizes = (events.payload[rows] >> shift) & mask
    arrivals = flows.arrival_ns(events.event_id[rows], events.end_ns[rows])
    return _intervals(events.start_ns[rows], np.maximum(arrivals, events.start_ns[rows]), sizes)
