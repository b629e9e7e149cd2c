"""Arena bytes to columns. Vectorised, a few thousand chunks at a time; it never prints and loses nothing in silence.

A record that cannot be understood is still an event: an unknown region id becomes a region of its own, an open span
keeps its start, and every such case is counted in `Counts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kprof import abi
from kprof.capture.directory import EVENT_CLAMPED, EVENT_OPEN, EVENT_SATURATED
from kprof.capture.manifest import ArenaUse, ClockInfo, CycleClock, EventCounts, RegionLosses
from kprof.clocks.cycles import Anchors, CycleMap, fit_cycles
from kprof.clocks.offset import ticks_to_ns
from kprof.errors import ArenaError
from kprof.recording.region_ids import RegionIds
from kprof.regions import Kind, Region

if TYPE_CHECKING:
    import pyarrow as pa

Bytes = np.ndarray
# 2 MiB of chunks at a time: the temporaries stay in the cache and memory stays bounded.
_CHUNKS_PER_BLOCK: Final = 2048
_WORDS_PER_CHUNK: Final = abi.CHUNK_BYTES // 8
_HEADER_WORDS: Final = abi.CHUNK_HEADER_BYTES // 8


@dataclass(frozen=True)
class ArenaState:
    """What the arena's head says: which chunks are in use and what could not be recorded.

    `dropped_of_region` counts by the id in the record, the last entry all ids from there on and entry 0 (no
    region) the records of short tracks.
    """

    geometry: abi.ArenaGeometry
    num_reserved_wanted: int
    used_chunks: tuple[tuple[int, int], ...]
    dropped_of_region: tuple[int, ...]
    num_tracks_without_chunk: int

    @property
    def num_used_chunks(self) -> int:
        """Chunks that were reserved or claimed."""
        return sum(end - begin for begin, end in self.used_chunks)


def read_control(head: Bytes, num_reserved_wanted: int = 0) -> ArenaState:
    """Read the first CHUNKS_OFFSET bytes of an arena; raises ArenaError when it is not one.

    The host asked to reserve `num_reserved_wanted` chunks; those that it got come first in `used_chunks`.
    """
    if len(head) < abi.CHUNKS_OFFSET:
        raise ArenaError(
            f"{len(head)} bytes are too few for the head of an arena ({abi.CHUNKS_OFFSET})"
        )
    control = head[: abi.CONTROL_BYTES].view(abi.CONTROL)[0]
    if int(control["magic"]) != abi.MAGIC:
        raise ArenaError(
            "these bytes are not a kprof arena: the magic number is wrong; was it overwritten?"
        )
    if int(control["abi_version"]) != abi.ABI_VERSION:
        raise ArenaError(
            f"the arena has ABI version {control['abi_version']}, this kprof reads {abi.ABI_VERSION}; "
            "rebuild the kernel against the installed headers"
        )
    geometry = abi.ArenaGeometry(
        *(int(control[name]) for name in ("num_chunks", "num_cursors", "num_reserved"))
    )
    cursors = control["cursors"][: geometry.num_cursors]
    first = geometry.first_reserved
    ranges = [(first, first + min(geometry.num_reserved, num_reserved_wanted))]
    ranges += [
        (begin, min(begin + int(num_claimed), end))
        for (begin, end), num_claimed in zip(
            geometry.cursor_slices(), cursors["next_chunk"], strict=True
        )
    ]
    sinks = head[abi.SINKS_OFFSET : abi.CHUNKS_OFFSET].view(abi.SINK)
    return ArenaState(
        geometry,
        num_reserved_wanted,
        tuple((begin, end) for begin, end in ranges if end > begin),
        tuple(sinks["num_dropped_of_region"].sum(axis=0).tolist()),
        int(cursors["num_tracks_without_chunk"].sum()),
    )


class Decoder:
    """Turns the chunks of one rank into event tables and keeps the counts over all flushes."""

    def __init__(
        self,
        rank: int,
        clock: ClockInfo,
        region_ids: RegionIds,
        nominal_cycles_per_second: float = 1e9,
    ) -> None:
        self.rank = rank
        self.region_ids = region_ids
        self.counts = EventCounts()
        # By region and kind of loss.
        self._losses: Counter[tuple[str, str]] = Counter()
        self._num_launches_decoded = 0
        self.cycle_clock: CycleClock | None = None
        self._clock = clock
        self._nominal_cycles_per_second = nominal_cycles_per_second
        self._num_claimed_needed = 0
        self._num_reserved_needed = 0
        self._num_used_chunks = 0
        self._size_bytes = 0

    def decode(self, state: ArenaState, chunks: Bytes) -> Iterator[pa.Table]:
        """Event tables of `chunks`: num_used_chunks * CHUNK_BYTES bytes in the order of `state.used_chunks`."""
        words = chunks.view("<u8").reshape(-1, _WORDS_PER_CHUNK)
        headers = chunks.reshape(-1, abi.CHUNK_BYTES)[:, : abi.CHUNK_HEADER_BYTES]
        headers = np.ascontiguousarray(headers).view(abi.CHUNK_HEADER).reshape(-1)
        _check_abi(headers)
        self._count_chunks(state, headers)
        cycle_map = self._fit_cycles(words, headers)
        for begin in range(0, len(words), _CHUNKS_PER_BLOCK):
            end = begin + _CHUNKS_PER_BLOCK
            yield self._decode_block(words[begin:end], headers[begin:end], cycle_map)

    def arena_use(self) -> ArenaUse:
        """The largest use of the arena between two flushes."""
        return ArenaUse(
            self._size_bytes,
            abi.ArenaGeometry(self._num_used_chunks, 1).size_bytes,
            abi.ArenaGeometry.for_chunks(
                self._num_claimed_needed, self._num_reserved_needed
            ).size_bytes,
        )

    def losses(self) -> tuple[RegionLosses, ...]:
        """The regions with records that were dropped or say less than they should, in the order of the tables."""
        lossy = {name: None for name, _ in sorted(self._losses)}
        known = [name for name in self.region_ids.merged().names if name in lossy]
        kinds = RegionLosses.__struct_fields__[1:]
        return tuple(
            RegionLosses(name, *(self._losses[name, kind] for kind in kinds))
            for name in dict.fromkeys([*known, *lossy])
        )

    def _count_chunks(self, state: ArenaState, headers: np.ndarray) -> None:
        """Dropped records, and how many chunks would have held everything."""
        num_reserved = min(state.num_reserved_wanted, state.geometry.num_reserved)
        # A reserved chunk without a header belongs to a track that was never opened; a claimed one was cut off.
        torn = int(np.count_nonzero(headers["flags"][num_reserved:] & abi.CHUNK_CLAIMED == 0))
        # A track asks for its next chunk as soon as one is full, and for another for every so many records dropped.
        cut_off = headers["num_dropped"][headers["flags"] & abi.CHUNK_NO_NEXT != 0]
        extra = int((1 + cut_off.astype(np.int64) // abi.RECORDS_PER_CHUNK).sum())
        # Tracks that never had a chunk share a counter: each needs one chunk and what its share takes.
        dropped = sum(state.dropped_of_region)
        without_chunk = dropped - int(headers["num_dropped"].sum())
        extra += state.num_tracks_without_chunk + without_chunk // abi.RECORDS_PER_CHUNK
        self._num_used_chunks = max(self._num_used_chunks, state.num_used_chunks)
        num_claimed = state.num_used_chunks - num_reserved + extra
        self._num_claimed_needed = max(self._num_claimed_needed, num_claimed)
        self._num_reserved_needed = max(self._num_reserved_needed, state.num_reserved_wanted)
        self._size_bytes = max(self._size_bytes, state.geometry.size_bytes)
        self._add(EventCounts(dropped=dropped, torn_chunks=torn))
        self._count_dropped(state)

    def _count_dropped(self, state: ArenaState) -> None:
        """By region, as the tables of the launches since the last flush name them."""
        launches = list(self.region_ids.table_of_launch)[self._num_launches_decoded :]
        self._num_launches_decoded += len(launches)
        for local_id in np.flatnonzero(state.dropped_of_region).tolist():
            if local_id == 0:
                name = "tracks of one chunk"
            elif local_id == abi.NUM_DROP_COUNTERS - 1:
                name = f"regions from id {local_id} on"
            else:
                name = self.region_ids.name(launches, local_id)
            self._losses[name, "dropped"] += state.dropped_of_region[local_id]

    def _fit_cycles(self, words: np.ndarray, headers: np.ndarray) -> CycleMap | None:
        """The map of this flush from cycles to real time, or None when all its records are in real time."""
        chunk_idxs = np.flatnonzero(headers["flags"] & abi.CHUNK_CYCLES)
        if len(chunk_idxs) == 0:
            return None
        fitted = fit_cycles(
            self._anchors(words[chunk_idxs], headers[chunk_idxs]),
            self._clock.step_ns,
            self._nominal_cycles_per_second,
        )
        worst_ns = max(fitted.error_ns, self.cycle_clock.error_ns if self.cycle_clock else 0.0)
        self.cycle_clock = CycleClock(fitted.cycles_per_second, worst_ns)
        return fitted

    def _anchors(self, words: np.ndarray, headers: np.ndarray) -> Anchors:
        """The anchors in chunk headers, and those that tracks wrote at their end."""
        first = words[:, _HEADER_WORDS::2]
        rows, columns = np.nonzero((first >> abi.START_BITS) == abi.ANCHOR_REGION_ID)
        at_end = words[rows, _HEADER_WORDS + 1 + 2 * columns]
        cycles_at_end = _unwrap(first[rows, columns], headers["anchor_cycles"][rows])
        realtime = np.concatenate([headers["anchor_realtime_ticks"], at_end]).astype(np.int64)
        return Anchors(
            np.concatenate([headers["launch"], headers["launch"][rows]]),
            np.concatenate([headers["hw_id"], headers["hw_id"][rows]]),
            np.concatenate([headers["anchor_cycles"].astype(np.int64), cycles_at_end]),
            ticks_to_ns(realtime, self._clock.ticks_per_second),
        )

    def _decode_block(
        self, words: np.ndarray, headers: np.ndarray, cycle_map: CycleMap | None
    ) -> pa.Table:
        first = words[:, _HEADER_WORDS::2]
        region_ids = first >> abi.START_BITS
        is_record = region_ids != 0
        if cycle_map is not None:
            in_cycles = (headers["flags"] & abi.CHUNK_CYCLES != 0)[:, np.newaxis]
            is_record &= ~(in_cycles & (region_ids == abi.ANCHOR_REGION_ID))
        num_records = is_record.sum(axis=1)
        first = first[is_record]
        second = words[:, _HEADER_WORDS + 1 :: 2][is_record]
        chunk_idxs = np.repeat(np.arange(len(headers)), num_records)
        launch = headers["launch"].astype(np.int32)[chunk_idxs]
        local_region = (first >> abi.START_BITS).astype(np.uint16)
        region, num_unknown = self.region_ids.translate(launch, local_region)
        duration_ticks = second.astype(np.uint32)
        payload = (second >> np.uint64(32)).astype(np.uint32)
        flags = self._flags(region, duration_ticks, payload)
        durations = duration_ticks.astype(np.int64)
        durations[flags & EVENT_OPEN != 0] = 0
        times = self._times(first, durations, headers, chunk_idxs, cycle_map)
        self._add(_count_flags(flags, num_unknown))
        self._count_losses(region, flags)
        return self._table(headers, chunk_idxs, launch, region, flags, times, payload)

    def _times(
        self,
        first: np.ndarray,
        duration_ticks: np.ndarray,
        headers: np.ndarray,
        chunk_idxs: np.ndarray,
        cycle_map: CycleMap | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Starts and durations in ns."""
        rate = self._clock.ticks_per_second
        anchors = headers["anchor_realtime_ticks"]
        if cycle_map is None:
            start_ticks = _unwrap(first, anchors[chunk_idxs])
            return ticks_to_ns(start_ticks, rate), ticks_to_ns(duration_ticks, rate)
        is_cycles = headers["flags"] & abi.CHUNK_CYCLES != 0
        start_ticks = _unwrap(
            first, np.where(is_cycles, headers["anchor_cycles"], anchors)[chunk_idxs]
        )
        start_ns = ticks_to_ns(start_ticks, rate)
        duration_ns = ticks_to_ns(duration_ticks, rate)
        rows = np.flatnonzero(is_cycles[chunk_idxs])
        place = headers["launch"][chunk_idxs[rows]], headers["hw_id"][chunk_idxs[rows]]
        start_ns[rows] = cycle_map.to_ns(*place, start_ticks[rows])
        end_ns = cycle_map.to_ns(*place, start_ticks[rows] + duration_ticks[rows])
        duration_ns[rows] = end_ns - start_ns[rows]
        return start_ns, duration_ns

    def _count_losses(self, region: np.ndarray, flags: np.ndarray) -> None:
        unknown_ids = self.region_ids.unknown_ids()
        if not flags.any() and not unknown_ids:
            return
        regions = self.region_ids.merged()
        for kind, is_lossy in (
            ("open", flags & EVENT_OPEN != 0),
            ("saturated", flags & EVENT_SATURATED != 0),
            ("clamped", flags & EVENT_CLAMPED != 0),
            ("unknown_region", np.isin(region, unknown_ids)),
        ):
            for region_id, count in zip(
                *np.unique(region[is_lossy], return_counts=True), strict=True
            ):
                self._losses[regions[int(region_id)].name, kind] += int(count)

    def _flags(
        self, region: np.ndarray, duration_ticks: np.ndarray, payload: np.ndarray
    ) -> np.ndarray:
        flags = np.zeros(len(region), dtype=np.uint8)
        flags[duration_ticks == abi.DURATION_OPEN] |= EVENT_OPEN
        flags[duration_ticks == abi.DURATION_SATURATED] |= EVENT_SATURATED
        for shift, mask in _field_lookups(self.region_ids.merged().regions):
            masks = mask[region]
            is_clamped = ((payload >> shift[region]) & masks == masks) & (masks != 0)
            flags[is_clamped] |= EVENT_CLAMPED
        return flags

    def _table(
        self,
        headers: np.ndarray,
        chunk_idxs: np.ndarray,
        launch: np.ndarray,
        region: np.ndarray,
        flags: np.ndarray,
        times: tuple[np.ndarray, np.ndarray],
        payload: np.ndarray,
    ) -> pa.Table:
        import pyarrow as pa

        from kprof.capture.directory import event_schema

        warps = headers["warp"].astype(np.int32)
        warps[warps == abi.BLOCK_TRACK_WARP] = -1
        columns = [
            np.full(len(region), self.rank, dtype=np.int32),
            launch,
            headers["block"].astype(np.int32)[chunk_idxs],
            warps.astype(np.int16)[chunk_idxs],
            region,
            flags,
            *times,
            payload,
            headers["hw_id"][chunk_idxs],
        ]
        return pa.Table.from_arrays([pa.array(column) for column in columns], schema=event_schema())

    def _add(self, more: EventCounts) -> None:
        names = EventCounts.__struct_fields__
        self.counts = EventCounts(
            *(getattr(self.counts, name) + getattr(more, name) for name in names)
        )


def _check_abi(headers: np.ndarray) -> None:
    """Kernels come with the headers that they were compiled with; raises ArenaError when those are not ours."""
    versions = headers["flags"] >> abi.CHUNK_ABI_SHIFT & abi.CHUNK_ABI_MASK
    is_foreign = (headers["flags"] & abi.CHUNK_CLAIMED != 0) & (versions != abi.ABI_VERSION)
    if is_foreign.any():
        first = int(np.argmax(is_foreign))
        version = int(versions[first]) or "2 or older"
        raise ArenaError(
            f"the kernel of launch {headers['launch'][first]} was compiled with kprof headers of ABI version "
            f"{version}, this kprof reads {abi.ABI_VERSION}; rebuild it against the installed headers"
        )


def _unwrap(first_words: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """48-bit starts to full ticks: the signed distance to the chunk's 64-bit anchor is small."""
    distance = (first_words - anchors) << np.uint64(64 - abi.START_BITS)
    signed = distance.view(np.int64) >> (64 - abi.START_BITS)
    starts: np.ndarray = anchors.astype(np.int64) + signed
    return starts


def _count_flags(flags: np.ndarray, num_unknown: int) -> EventCounts:
    return EventCounts(
        recorded=len(flags),
        open=int(np.count_nonzero(flags & EVENT_OPEN)),
        saturated=int(np.count_nonzero(flags & EVENT_SATURATED)),
        clamped=int(np.count_nonzero(flags & EVENT_CLAMPED)),
        unknown_region=num_unknown,
    )


def _field_lookups(regions: Sequence[Region]) -> list[tuple[np.ndarray, np.ndarray]]:
    """For the first, second ... payload field: shift and mask by region id; mask 0 where there is no such field."""
    spans = [region for region in regions if region.kind is not Kind.VALUE]
    num_fields = max((len(region.fields) for region in spans), default=0)
    lookups = []
    for idx in range(num_fields):
        shift = np.zeros(len(regions) + 1, dtype=np.uint32)
        mask = np.zeros(len(regions) + 1, dtype=np.uint32)
        for region in spans:
            if idx < len(region.fields):
                shift[region.id] = region.fields[idx].shift
                mask[region.id] = region.fields[idx].mask
        lookups.append((shift, mask))
    return lookups
