"""The track tree: rank > block > warp, with the rank's launches and counters above its blocks.

    Rank 3 (host0, NVIDIA H200)
      active blocks, waiting blocks, bytes in flight
      kernel launches
      block 2
        warp 0
      block 10

A rank is a plain track, not a process with threads. Viewers sort processes by how busy they are and
a process's tracks by text: rank 5 could come before rank 0, and block 10 before block 2. Tracks
without a parent are sorted by text too, so rank numbers get leading zeros if there are more than
ten. Each rank also has a process without tracks, so that queries find ranks in the process table.

Trace viewers draw a track as a stack: a span must end within the span in which it began. Spans that
only overlap (two copies in flight, an open span) go to lane 1, 2, ... of their track.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.capture.manifest import RankInfo
from kprof.export.grouping import Grouping
from kprof.export.links import PinnedTrack
from kprof.export.model import LAUNCHES_NAME, Rank, Track, TrackKind
from kprof.export.source import RawEvents, Source, TrackKey
from kprof.regions import Kind, Region
from kprof.trace import Trace

_FIRST_PID: Final = 1000
# Sorted above the blocks, which use their numbers: counters, then launches, then overlays.
_COUNTERS_ORDER: Final = -3000
_LAUNCHES_ORDER: Final = -2000
_OVERLAYS_ORDER: Final = -1000


def describe_ranks(trace: Trace) -> tuple[Rank, ...]:
    """Names and process ids of the ranks. The real process ids if they are unique, else other
    numbers."""
    own = [info.pid for info in trace.ranks]
    width = len(str(max((info.rank for info in trace.manifest.ranks), default=0)))
    is_unique = len(set(own)) == len(own) and all(pid > 0 for pid in own)
    return tuple(
        Rank(
            info.rank,
            info.pid if is_unique else _FIRST_PID + info.rank,
            rank_name(info, width),
            _labels(trace, info),
            _place(info),
        )
        for info in trace.ranks
    )


def rank_name(info: RankInfo, width: int = 1) -> str:
    """`Rank 3 (host0, NVIDIA H200)`; the number has at least `width` digits."""
    number = f"Rank {info.rank:0{width}}"
    return f"{number} ({_place(info)})" if _place(info) else number


def _place(info: RankInfo) -> str:
    return ", ".join(filter(None, (info.host, info.device)))


def _labels(trace: Trace, info: RankInfo) -> tuple[str, ...]:
    if trace.alignment is None:
        return ("clock not aligned with other ranks",) if len(trace.manifest.ranks) > 1 else ()
    bounds = {entry.rank: entry.bound_ns for entry in trace.alignment.ranks}
    if info.rank not in bounds or info.rank == trace.alignment.reference_rank:
        return ()
    return (f"clock aligned within {bounds[info.rank]:.0f} ns",)


class RankTracks:
    """Allocates the tracks of one rank. Ids continue from rank to rank. `take_new` returns those
    not yet declared."""

    def __init__(
        self,
        rank: int,
        name: str,
        first_id: int,
        keys: list[TrackKey],
        grouping: Grouping,
    ) -> None:
        self.rank = rank
        self._grouping = grouping
        self.next_id = first_id
        self._num_counters = 0
        self._num_overlays = 0
        self._new: list[Track] = []
        self._by_id: dict[int, Track] = {}
        self._extra: dict[tuple[int | str, ...], int] = {}
        self._device: dict[tuple[int, int], int] = {}
        self._add(TrackKind.PROCESS, name)
        self.root = self._add(TrackKind.RANK, name)
        name = self._whole_name(-1, LAUNCHES_NAME)
        self.launches = self._add(TrackKind.LAUNCHES, name, self.root, _LAUNCHES_ORDER)
        for key in keys:
            self._add_device_track(key)

    def take_new(self) -> list[Track]:
        """Tracks that were allocated since the last call, parents first."""
        new, self._new = self._new, []
        return new

    def counter(self, name: str, unit: str) -> int:
        """A counter of the whole rank, in the order of these calls."""
        self._num_counters += 1
        order = _COUNTERS_ORDER + self._num_counters
        return self._add(TrackKind.COUNTER, name, self.root, order=order, unit=unit)

    def overlay(self, name: str) -> int:
        """A line of a foreign trace, between the launches and the blocks, in the order of calls."""
        self._num_overlays = min(self._num_overlays + 1, -_OVERLAYS_ORDER - 1)
        return self._add(TrackKind.OVERLAY, name, self.root, _OVERLAYS_ORDER + self._num_overlays)

    def lane(self, track: int, lane: int) -> int:
        """The track itself for lane 0, else a further track for slices that overlap."""
        if lane == 0:
            return track
        base = self._by_id[track]
        place = (track, "lane", lane)
        return self._once(place, base.kind, base.name, base.parent, base.order, lane)

    def place(
        self, events: RawEvents, names: tuple[Region, ...]
    ) -> tuple[NDArray[np.int64], Nesting]:
        """The track id of every event, shape (n,), and how the events nest.

        Overlapping spans get lanes, values get counters.
        """
        track = self._device_tracks(events)
        nesting = nest(track, events.start_ns, events.end_ns)
        for row in np.flatnonzero(nesting.lane).tolist():
            track[row] = self.lane(int(track[row]), int(nesting.lane[row]))
        is_value = np.array([region.kind is Kind.VALUE for region in names])[events.name]
        for row in np.flatnonzero(is_value).tolist():
            of, name = int(track[row]), names[int(events.name[row])].name
            track[row] = self._once((of, name), TrackKind.COUNTER, name, of, order=-1)
        return track, nesting

    def block_tracks(self, *, pinned_only: bool = False) -> dict[int, int]:
        """The track of every block, or of those that are to be pinned."""
        return {
            block: track
            for (block, warp), track in self._device.items()
            if warp < 0 and (self._is_pinned(block) or not pinned_only)
        }

    def of_blocks(self, blocks: list[int]) -> NDArray[np.int64]:
        """Track ids of blocks, shape (n,)."""
        return np.array([self._device[block, -1] for block in blocks], dtype=np.int64)

    def _device_tracks(self, events: RawEvents) -> NDArray[np.int64]:
        firsts, lasts = track_runs(events.block << 16 | events.warp + 1)
        ids = [
            self._device[key]
            for key in zip(events.block[firsts].tolist(), events.warp[firsts].tolist(), strict=True)
        ]
        return np.repeat(np.array(ids, dtype=np.int64), lasts - firsts)

    def _add_device_track(self, key: TrackKey) -> None:
        block = self._device.get((key.block, -1))
        if block is None:
            name = self._grouping.group_name(self.rank, key.block)
            name = self._whole_name(key.block, name)
            block = self._add(TrackKind.BLOCK, name, self._parent_of(key.block), order=key.block)
            self._device[key.block, -1] = block
        if key.warp >= 0:
            name = self._grouping.row_name(key.warp)
            warp = self._add(TrackKind.WARP, name, block, order=key.warp)
            self._device[key.block, key.warp] = warp

    def _whole_name(self, block: int, name: str) -> str:
        """The name of a block's track, with that of its rank where it is to be pinned."""
        return PinnedTrack(self.rank, block).title if self._is_pinned(block) else name

    def _is_pinned(self, block: int) -> bool:
        return PinnedTrack(self.rank, block) in self._grouping.pinned

    def _parent_of(self, block: int) -> int:
        """The rank, or the chiplet of a processor."""
        chiplet = self._grouping.parent_name(self.rank, block)
        if not chiplet:
            return self.root
        return self._once(("chiplet", chiplet), TrackKind.CHIPLET, chiplet, self.root, block)

    def _once(
        self,
        place: tuple[int | str, ...],
        kind: TrackKind,
        name: str,
        parent: int,
        order: int,
        lane: int = 0,
    ) -> int:
        """The track at a place, which is added when it is asked for first."""
        if place not in self._extra:
            self._extra[place] = self._add(kind, name, parent, order, lane)
        return self._extra[place]

    def _add(
        self,
        kind: TrackKind,
        name: str,
        parent: int = 0,
        order: int = 0,
        lane: int = 0,
        unit: str = "",
    ) -> int:
        track = Track(self.next_id, kind, name, self.rank, parent, order, lane, unit)
        self.next_id += 1
        self._new.append(track)
        self._by_id[track.id] = track
        return track.id


def keys_by_rank(source: Source) -> dict[int, list[TrackKey]]:
    """Track keys of every selected rank, including ranks without events."""
    keys: dict[int, list[TrackKey]] = {info.rank: [] for info in source.trace.ranks}
    for key in source.keys:
        keys[key.rank].append(key)
    return keys


@dataclass(frozen=True)
class Nesting:
    """For each span: its lane (0 is the track itself), and how many spans of that lane enclose
    it."""

    lane: NDArray[np.int32]
    depth: NDArray[np.int32]


def nest(
    track: NDArray[np.generic], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> Nesting:
    """Lanes and depths of spans that are sorted by (track, start, longer first); shapes (n,)."""
    result = Nesting(np.zeros(len(track), np.int32), np.zeros(len(track), np.int32))
    for first, last in _stacked_tracks(track, start_ns, end_ns):
        _nest_track(start_ns[first:last].tolist(), end_ns[first:last].tolist(), first, result)
    return result


def track_runs(track: NDArray[np.generic]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows (first, last + 1) of each run of equal tracks."""
    if len(track) == 0:
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    firsts = np.flatnonzero(np.r_[True, track[1:] != track[:-1]])
    return firsts, np.r_[firsts[1:], len(track)]


def _stacked_tracks(
    track: NDArray[np.generic], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> list[tuple[int, int]]:
    """Rows of the tracks in which a span begins before its predecessor ended.

    The others are flat.
    """
    is_stacked = (start_ns[1:] < end_ns[:-1]) & (track[1:] == track[:-1])
    if not is_stacked.any():
        return []
    firsts, lasts = track_runs(track)
    stacked = np.unique(np.searchsorted(firsts, np.flatnonzero(is_stacked), side="right") - 1)
    return list(zip(firsts[stacked].tolist(), lasts[stacked].tolist(), strict=True))


def _nest_track(starts: list[int], ends: list[int], first: int, result: Nesting) -> None:
    """Put each span on the first lane where it fits.

    `open_ends[k]` is the stack of open ends of lane k.
    """
    open_ends: list[list[int]] = [[]]
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        lane = 0
        while True:
            stack = open_ends[lane]
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or end <= stack[-1]:
                break
            lane += 1
            if lane == len(open_ends):
                open_ends.append([])
        if lane or stack:
            result.lane[first + i] = lane
            result.depth[first + i] = len(stack)
        stack.append(end)
