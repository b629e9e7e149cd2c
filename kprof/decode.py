"""Arena bytes to columns. Vectorised, a few thousand chunks at a time; it never prints and loses nothing in silence.

A record that cannot be understood is still an event: an unknown region id becomes a region of its own, an open span
keeps its start, and every such case is counted in `Counts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from kprof import abi
from kprof.capture import EVENT_CLAMPED, EVENT_OPEN, EVENT_SATURATED
from kprof.clock import ticks_to_ns
from kprof.cycles import Anchors, CycleMap, fit_cycles
from kprof.errors import ArenaError
from kprof.manifest import ArenaUse, ClockInfo, CycleClock, EventCounts, RegionLosses
from kprof.regions import Kind, MergedTables, Region, RegionTable, merge_tables

if TYPE_CHECKING:
    import pyarrow as pa

Bytes = np.ndarray
# 2 MiB of chunks at a time: the temporaries stay in the cache and memory stays bounded.
_CHUNKS_PER_BLOCK: Final = 2048
_WORDS_PER_CHUNK: Final = abi.CHUNK_BYTES // 8
_HEADER_WORDS: Final = abi.CHUNK_HEADER_BYTES // 8


@dataclass
class RegionIds:
    """Maps (region table of the launch, id in the record) to one id space that only ever grows at its end.

    An unknown id becomes a table of one region, added like any other: events that were written keep their ids whatever
    comes later.
    """

    table_of_launch: dict[int, int] = field(default_factory=dict)
    _tables: list[RegionTable] = field(default_factory=list)
    _table_of_unknown: dict[tuple[int, int], int] = field(default_factory=dict)
    _united: MergedTables = field(default_factory=lambda: merge_tables([]))

    def table_idx(self, table: RegionTable) -> int:
        """The index of `table`, added when it is new; raises RegionError when it contradicts another."""
        if table not in self._tables:
            self._united = merge_tables([*self._tables, table])
            self._tables.append(table)
        return self._tables.index(table)

    def merged(self) -> RegionTable:
        """All regions, the unknown ones included."""
        return self._united.table

    def translate(self, launches: np.ndarray, region_ids: np.ndarray) -> tuple[np.ndarray, int]:
        """Merged ids for records of the given launches, and how many of them were unknown."""
        if not self._tables:
            self.table_idx(RegionTable())
        id_maps = self._united.id_maps
        width = max(len(id_map) for id_map in id_maps) + 1
        lookup = np.zeros((len(id_maps), width), dtype=np.uint16)
        for table_idx, id_map in enumerate(id_maps):
            lookup[table_idx, : len(id_map)] = id_map
        table_idxs = self._tables_of(launches)
        merged = lookup[table_idxs, np.minimum(region_ids, width - 1)]
        unknown = np.flatnonzero(merged == 0)
        for position in unknown:
            merged[position] = self._unknown_id(
                int(table_idxs[position]), int(region_ids[position])
            )
        return merged, len(unknown)

    def unknown_ids(self) -> list[int]:
        """The merged ids that stand for ids which no table declares."""
        return [self._united.id_maps[table_idx][1] for table_idx in self._table_of_unknown.values()]

    def _tables_of(self, launches: np.ndarray) -> np.ndarray:
        if len(self._tables) == 1:
            return np.zeros(len(launches), dtype=np.intp)
        numbers, inverse = np.unique(launches, return_inverse=True)
        idxs = np.array(
            [self.table_of_launch.get(int(number), 0) for number in numbers], dtype=np.intp
        )
        return idxs[inverse]

    def _unknown_id(self, table_idx: int, local_id: int) -> int:
        key = (table_idx, local_id)
        if key not in self._table_of_unknown:
            region = Region(1, f"unknown region {local_id} of table {table_idx}")
            self._table_of_unknown[key] = self.table_idx(RegionTable((region,)))
        return self._united.id_maps[self._table_of_unknown[key]][1]


@dataclass(frozen=True)
class ArenaState:
    """What the control block says: which chunks are in use and what could not be recorded."""

    geometry: abi.ArenaGeometry
    num_reserved_wanted: int
    used_chunks: tuple[tuple[int, int], ...]
    num_dropped: int
    num_tracks_without_chunk: int

    @property
    def num_used_chunks(self) -> int:
        """Chunks that were reserved or claimed."""
        return sum(end - begin for begin, end in self.used_chunks)


def read_control(head: Bytes, num_reserved_wanted: int = 0) -> ArenaState:
    """Read the control block from the first bytes of an arena; raises ArenaError when it is not one.

    The host asked to reserve `num_reserved_wanted` chunks; those that it got come first in `used_chunks`.
    """
    if len(head) < abi.CONTROL_BYTES:
        raise ArenaError(
            f"{len(head)} bytes are too few for an arena's control block ({abi.CONTROL_BYTES})"
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
    return ArenaState(
        geometry,
        num_reserved_wanted,
        tuple((begin, end) for begin, end in ranges if end > begin),
        int(cursors["num_dropped"].sum()),
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
        # By region id: open, saturated, clamped and unknown records.
        self._losses: Counter[tuple[int, str]] = Counter()
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
        """The regions with records that say less than they should, by region id."""
        names = {region.id: region.name for region in self.region_ids.merged().regions}
        return tuple(
            RegionLosses(
                names[region_id],
                *(self._losses[region_id, kind] for kind in RegionLosses.__struct_fields__[1:]),
            )
            for region_id in sorted({region_id for region_id, _ in self._losses})
        )

    def _count_chunks(self, state: ArenaState, headers: np.ndarray) -> None:
        """Dropped records, and how many chunks would have held everything."""
        dropped = int(headers["num_dropped"].sum()) + state.num_dropped
        num_reserved = min(state.num_reserved_wanted, state.geometry.num_reserved)
        # A reserved chunk without a header belongs to a track that was never opened; a claimed one was cut off.
        torn = int(np.count_nonzero(headers["flags"][num_reserved:] & abi.CHUNK_CLAIMED == 0))
        extra = int((-(-headers["num_dropped"].astype(np.int64) // abi.RECORDS_PER_CHUNK)).sum())
        # Tracks that never had a chunk share their drop counters: each needs one chunk and what its share takes.
        extra += state.num_tracks_without_chunk + -(-state.num_dropped // abi.RECORDS_PER_CHUNK)
        self._num_used_chunks = max(self._num_used_chunks, state.num_used_chunks)
        num_claimed = state.num_used_chunks - num_reserved + extra
        self._num_claimed_needed = max(self._num_claimed_needed, num_claimed)
        self._num_reserved_needed = max(self._num_reserved_needed, state.num_reserved_wanted)
        self._size_bytes = max(self._size_bytes, state.geometry.size_bytes)
        self._add(EventCounts(dropped=dropped, torn_chunks=torn))

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
        for kind, is_lossy in (
            ("open", flags & EVENT_OPEN != 0),
            ("saturated", flags & EVENT_SATURATED != 0),
            ("clamped", flags & EVENT_CLAMPED != 0),
            ("unknown_region", np.isin(region, unknown_ids)),
        ):
            for region_id, count in zip(
                *np.unique(region[is_lossy], return_counts=True), strict=True
            ):
                self._losses[int(region_id), kind] += int(count)

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

        from kprof.capture import event_schema

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
