"""What a rank recorded and lost over all flushes: events, losses by region, arena space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import astuple

from kprof import abi
from kprof.capture.directory import EVENT_CLAMPED, EVENT_OPEN, EVENT_SATURATED
from kprof.capture.manifest import MAX_COUNT, ArenaUse, EventCounts, RankInfo, RegionLosses
from kprof.recording.arenas.arena_state import ArenaState
from kprof.recording.launches.region_ids import RegionIds

# Chunks are numbered in 32 bits, and some arenas are twice as large as what is wanted of them.
_MAX_CHUNKS_NEEDED = abi.NO_CHUNK // 4


_KINDS: Final = RegionLosses.__struct_fields__[1:]


class Tally:
    """Counts over all flushes; `counts` are the sums over all regions.

    `num_arenas` of equal size are used in turn.
    """

    def __init__(
        self, region_ids: RegionIds, num_arenas: int = 1, *, is_ring: bool = False
    ) -> None:
        self.counts = EventCounts()
        self._region_ids = region_ids
        # By region and kind of loss.
        self._losses: Counter[tuple[str, str]] = Counter()
        self._first_launch = 0
        self._num_arenas = num_arenas
        self._is_ring = is_ring
        self._num_claimed_needed = 0
        self._num_reserved_needed = 0
        self._num_used_chunks = 0
        self._size_bytes = 0
        self._use_before = ArenaUse(0, 0, 0)

    def add(self, more: EventCounts) -> None:
        """Add to `counts`."""
        both = zip(astuple(self.counts), astuple(more), strict=True)
        # Only damaged memory holds so many.
        self.counts = EventCounts(*(min(count + other, MAX_COUNT) for count, other in both))

    def note_left_out(self, num_calls: int, num_launches: int) -> None:
        """So many calls were left out so far, and so many launches of them."""
        left_out = {"left_out_calls": num_calls, "left_out_launches": num_launches}
        self.counts = msgspec.structs.replace(self.counts, **left_out)

    def restore(self, before: RankInfo) -> None:
        """Go on from what another process has counted."""
        self.counts, self._use_before = before.counts, before.arena
        for each in before.losses:
            self._losses.update({(each.region, kind): getattr(each, kind) for kind in _KINDS})

    def add_chunks(
        self,
        state: ArenaState,
        headers: np.ndarray,
        captured: Sequence[int] = (),
        end_launch: int | None = None,
    ) -> None:
        """Add one flush: dropped records, and how many chunks would have held everything.

        `captured` are launches of earlier flushes whose replays may be of this one. Launches from
        `end_launch` on are not.
        """
        handed = state.handed
        # A track asks for its next chunk as soon as one is full, and for another for every so many
        # records dropped.
        cut_off = headers["num_dropped"][headers["flags"] & abi.CHUNK_NO_NEXT != 0].astype(np.int64)
        extra = int((1 + cut_off // abi.RECORDS_PER_CHUNK).sum())
        # Tracks that never had a chunk share a counter: each needs one chunk and what its share
        # takes.
        dropped = sum(state.dropped_of_region)
        without_chunk = dropped - int(cut_off.sum())
        extra += state.num_tracks_without_chunk + max(0, without_chunk) // abi.RECORDS_PER_CHUNK
        is_damaged = state.is_damaged or without_chunk < 0
        num_claimed, num_reserved = sum(state.num_claimed) + extra, handed.num_reserved_wanted
        if handed.has_claiming_launches and num_reserved:
            # Those may raise the limit so far that later launches have to claim what they would
            # have reserved.
            num_claimed = num_reserved = num_claimed + num_reserved
        self._num_used_chunks = max(self._num_used_chunks, state.num_used_chunks)
        self._num_claimed_needed = max(self._num_claimed_needed, num_claimed)
        self._num_reserved_needed = max(self._num_reserved_needed, num_reserved)
        self._size_bytes = max(self._size_bytes, handed.geometry.size_bytes)
        num_overwritten = 0 if is_damaged else state.num_overwritten_runs
        self.add(
            EventCounts(
                dropped=dropped, damaged_heads=int(is_damaged), overwritten_runs=num_overwritten
            )
        )
        self._add_dropped(state, captured, end_launch)

    def _add_dropped(
        self, state: ArenaState, captured: Sequence[int], end_launch: int | None
    ) -> None:
        """By region, as the tables of the launches since the last flush name them."""
        known = list(self._region_ids.table_of_launch)
        end = max(known, default=-1) + 1 if end_launch is None else end_launch
        launches = [each for each in known if self._first_launch <= each < end]
        self._first_launch = end
        launches += captured
        for local_id in np.flatnonzero(state.dropped_of_region).tolist():
            if local_id == 0:
                name = "tracks of one chunk"
            elif local_id == abi.NUM_DROP_COUNTERS - 1:
                name = f"regions from id {local_id} on"
            else:
                name = self._region_ids.name(launches, local_id)
            self._losses[name, "dropped"] += state.dropped_of_region[local_id]

    def remove_events(self, region: np.ndarray, flags: np.ndarray) -> None:
        """Take events back that were added."""
        num_unknown = np.count_nonzero(np.isin(region, self._region_ids.unknown_ids()))
        self.add_events(region, flags, int(num_unknown), -1)

    def add_events(
        self, region: np.ndarray, flags: np.ndarray, num_unknown: int, times: int = 1
    ) -> None:
        """Add events with these regions and flags, `num_unknown` of them of undeclared regions."""
        unknown_ids = self._region_ids.unknown_ids()
        is_lossy = {
            "open": flags & EVENT_OPEN != 0,
            "saturated": flags & EVENT_SATURATED != 0,
            "clamped": flags & EVENT_CLAMPED != 0,
        }
        counts = {kind: times * int(np.count_nonzero(lossy)) for kind, lossy in is_lossy.items()}
        self.add(
            EventCounts(recorded=times * len(flags), unknown_region=times * num_unknown, **counts)
        )
        if not any(counts.values()) and not unknown_ids:
            return
        regions = self._region_ids.merged()
        is_lossy["unknown_region"] = np.isin(region, unknown_ids)
        for kind, lossy in is_lossy.items():
            for region_id, count in zip(*np.unique(region[lossy], return_counts=True), strict=True):
                self._losses[regions[int(region_id)].name, kind] += times * int(count)

    def arena_use(self) -> ArenaUse:
        """The largest use of the arena between two flushes, as if all arenas were used as much.

        0 bytes are needed where no arena could be so large, and of a ring, whose size says how much
        to keep.
        """
        claimed, reserved = self._num_claimed_needed, self._num_reserved_needed
        needed_bytes = 0
        if max(claimed, reserved) < _MAX_CHUNKS_NEEDED and not self._is_ring:
            needed_bytes = abi.ArenaGeometry.for_chunks(claimed, reserved).size_bytes
        used_bytes = abi.ArenaGeometry(self._num_used_chunks, 1).size_bytes
        sizes = (self._num_arenas * each for each in (self._size_bytes, used_bytes, needed_bytes))
        return ArenaUse(*map(max, astuple(self._use_before), sizes))

    def losses(self) -> tuple[RegionLosses, ...]:
        """The regions that lost records or parts of them, in the order of the tables."""
        lossy = {name: None for (name, _), count in sorted(self._losses.items()) if count}
        known = [name for name in self._region_ids.merged().names if name in lossy]
        return tuple(
            RegionLosses(name, *(min(self._losses[name, kind], MAX_COUNT) for kind in _KINDS))
            for name in dict.fromkeys([*known, *lossy])
        )
