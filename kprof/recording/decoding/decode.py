"""Decodes arena bytes into columns: vectorised, a few thousand chunks at a time. Every loss is
counted.

An odd record is still an event: an unknown region id becomes a region of its own, an open span
keeps its start, and each such case is counted. Memory may be damaged. Damaged chunks (see
inspection.py) and impossible records (no region, a gap between others, a time that no capture may
hold) are counted and left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from kprof import abi
from kprof.capture.directory import EVENT_CLAMPED, EVENT_OPEN, EVENT_SATURATED
from kprof.capture.manifest import CycleClock, EventCounts, RankInfo
from kprof.clocks.cycles import Anchors, CycleMap, fit_cycles, torn_anchors
from kprof.clocks.offset import ticks_to_ns
from kprof.errors import ArenaError
from kprof.on_use import pa
from kprof.recording.arenas.arena_state import ArenaState
from kprof.recording.decoding.inspection import Chunks, inspect, is_within, warps_of
from kprof.recording.decoding.replays import Replays, unwrap
from kprof.recording.decoding.tally import Tally
from kprof.recording.launches.region_ids import RegionIds
from kprof.regions import Kind, Region

Bytes = np.ndarray
# 2 MiB of chunks: temporaries stay in the cache, and memory stays bounded.
_CHUNKS_PER_BLOCK: Final = 2048
_WORDS_PER_CHUNK: Final = abi.CHUNK_BYTES // 8
_HEADER_WORDS: Final = abi.CHUNK_HEADER_BYTES // 8
_MAX_CLOCK_NS: Final = 1 << (abi.MAX_CLOCK_BITS - 1)


@dataclass(frozen=True)
class _Records:
    """Columns of records: chunk, region id, second word, duration in ticks as recorded, times, and
    the place in the chunk."""

    chunk_idxs: np.ndarray
    local_region: np.ndarray
    second: np.ndarray
    duration_ticks: np.ndarray
    start_ns: np.ndarray
    duration_ns: np.ndarray
    slots: np.ndarray

    def rows(self, which: np.ndarray) -> _Records:
        """The selected records."""
        return _Records(*(getattr(self, field.name)[which] for field in fields(self)))


class Decoder:
    """Turns one rank's chunks into event tables, and counts over all flushes.

    `base` says which rank, and what is known of its clock.
    """

    def __init__(
        self,
        base: RankInfo,
        region_ids: RegionIds,
        num_arenas: int = 1,
        *,
        is_ring: bool = False,
    ) -> None:
        self._rank = base.rank
        self.region_ids = region_ids
        self.tally = Tally(region_ids, num_arenas, is_ring=is_ring)
        self.replays = Replays()
        self.cycle_clock: CycleClock | None = None
        self._clock = base.clock
        self._nominal_cycles_per_second = base.cycles_per_second

    def decode(
        self,
        state: ArenaState,
        data: Bytes,
        end_launch: int | None = None,
        only: Sequence[range] | None = None,
    ) -> Iterator[pa.Table]:
        """Event tables of `data`, the chunks of `state.ranges()`; launches from `end_launch` on
        have none there.

        With `only`, leaves out all launches but these. Raises ArenaError if there are fewer chunks.
        """
        chunks = self._inspected(state, data, end_launch)
        has_lost = state.num_tracks_without_chunk > 0
        first_reserved = state.handed.first_reserved
        num_unsplit = self.replays.split(
            chunks, self.region_ids, has_lost=has_lost, first_reserved=first_reserved
        )
        self.tally.add(EventCounts(unsplit_launches=num_unsplit))
        if only is not None:
            chunks = chunks.of_launches(only)
        cycle_map, chunks = self._fit_cycles(chunks)
        for begin in range(0, len(chunks), _CHUNKS_PER_BLOCK):
            yield self._decode_block(chunks.rows(begin, begin + _CHUNKS_PER_BLOCK), cycle_map)

    def _inspected(self, state: ArenaState, data: Bytes, end_launch: int | None) -> Chunks:
        """The whole chunks. The others are counted."""
        num_chunks = sum(end - begin for begin, end in state.ranges())
        if len(data) != num_chunks * abi.CHUNK_BYTES:
            raise ArenaError(
                f"{num_chunks} chunks of an arena are in use, but {len(data)} bytes of them were "
                "read"
            )
        words = data.view("<u8").reshape(-1, _WORDS_PER_CHUNK)
        headers = np.ascontiguousarray(words[:, :_HEADER_WORDS]).view(abi.CHUNK_HEADER).reshape(-1)
        launches = self.region_ids.table_of_launch
        chunks, num_torn, num_stray = inspect(state, words, headers, launches)
        self.tally.add_chunks(state, chunks.headers, self.replays.captured, end_launch)
        self.tally.add(EventCounts(torn_chunks=num_torn, stray_chunks=num_stray))
        return chunks

    def _fit_cycles(self, chunks: Chunks) -> tuple[CycleMap | None, Chunks]:
        """The map from cycles to real time for this flush, or None if no record uses cycles.

        Leaves out chunks whose own anchor is torn, because nothing tells when their records were
        written.
        """
        if not (chunks.headers["flags"] & abi.CHUNK_CYCLES).any():
            return None, chunks
        # Headers first, one vote per chunk, because a chunk's other anchors depend on its header.
        for are_headers_only in (True, False):
            in_cycles = np.flatnonzero(chunks.headers["flags"] & abi.CHUNK_CYCLES)
            anchors = self._anchors(chunks, in_cycles)
            if are_headers_only:
                anchors = anchors.rows(np.arange(len(in_cycles)))
            is_torn = torn_anchors(anchors, self._nominal_cycles_per_second)
            chunks = chunks.without(in_cycles[is_torn[: len(in_cycles)]])
            num_torn = int(np.count_nonzero(is_torn[: len(in_cycles)]))
            self.tally.add(
                EventCounts(torn_chunks=num_torn, torn_records=int(is_torn.sum()) - num_torn)
            )
        if is_torn.all():
            return None, chunks
        fitted = fit_cycles(
            anchors.rows(~is_torn), self._clock.step_ns, self._nominal_cycles_per_second
        )
        worst_ns = max(fitted.error_ns, self.cycle_clock.error_ns if self.cycle_clock else 0.0)
        self.cycle_clock = CycleClock(fitted.cycles_per_second, worst_ns)
        return fitted, chunks

    def _anchors(self, chunks: Chunks, in_cycles: np.ndarray) -> Anchors:
        """The anchors in chunk headers, followed by those that tracks wrote as records."""
        words, headers = chunks.words[chunks.which[in_cycles]], chunks.headers[in_cycles]
        first = words[:, _HEADER_WORDS::2]
        rows, columns = np.nonzero((first >> abi.START_BITS) == abi.ANCHOR_REGION_ID)
        at_end = words[rows, _HEADER_WORDS + 1 + 2 * columns]
        cycles_at_end = unwrap(first[rows, columns], headers["anchor_cycles"][rows])
        realtime = np.concatenate([headers["anchor_realtime_ticks"], at_end])
        return Anchors(
            np.concatenate([headers["launch"], headers["launch"][rows]]),
            np.concatenate([headers["hw_id"], headers["hw_id"][rows]]),
            np.concatenate([headers["anchor_cycles"].astype(np.int64), cycles_at_end]),
            self._to_ns(realtime.astype(np.int64)),
        )

    def _to_ns(self, ticks: np.ndarray) -> np.ndarray:
        """Ticks in ns. Ticks that no clock can have reached become a time that no clock can
        show."""
        most = int(_MAX_CLOCK_NS * self._clock.ticks_per_second / 1e9)
        if not len(ticks) or (ticks.min() >= 0 and ticks.max() <= most):
            return ticks_to_ns(ticks, self._clock.ticks_per_second)
        return np.where(
            (ticks >= 0) & (ticks <= most),
            ticks_to_ns(ticks.clip(0, most), self._clock.ticks_per_second),
            -1,
        )

    def _decode_block(self, chunks: Chunks, cycle_map: CycleMap | None) -> pa.Table:
        words, headers = chunks.words, chunks.headers
        first = words[:, _HEADER_WORDS::2]
        region_ids = first >> abi.START_BITS
        is_record = region_ids != 0
        num_records = _count_true(is_record)
        if num_records.sum() < is_record.size:
            self.tally.add(EventCounts(torn_records=_count_torn(chunks, is_record, num_records)))
        if cycle_map is not None:
            in_cycles = (headers["flags"] & abi.CHUNK_CYCLES != 0)[:, np.newaxis]
            is_record &= ~(in_cycles & (region_ids == abi.ANCHOR_REGION_ID))
            num_records = _count_true(is_record)
        second = words[:, _HEADER_WORDS + 1 :: 2]
        # Most chunks are full, and a plain copy takes half the time of a masked one.
        is_all = num_records.sum() == is_record.size
        first, second = (w.ravel() if is_all else w[is_record] for w in (first, second))
        # np.repeat would keep the interpreter's lock, which the launching thread wants, too.
        rows = np.broadcast_to(np.arange(len(headers))[:, np.newaxis], is_record.shape)
        chunk_idxs = rows.ravel() if is_all else rows[is_record]
        duration_ticks = second.astype(np.uint32)
        durations = duration_ticks.astype(np.int64)
        durations[duration_ticks == abi.DURATION_OPEN] = 0
        times = self._times(first, durations, headers, chunk_idxs, cycle_map)
        slots = np.broadcast_to(np.arange(is_record.shape[1]), is_record.shape)
        records = _Records(
            chunk_idxs,
            (first >> abi.START_BITS).astype(np.uint16),
            second,
            duration_ticks,
            *times,
            slots.ravel() if is_all else slots[is_record],
        )
        if not _are_times(*(_ends_of(column) for column in times)).all():
            is_possible = _are_times(*times)
            self.tally.add(EventCounts(torn_records=int(np.count_nonzero(~is_possible))))
            records = records.rows(is_possible)
        return self._events(headers, records)

    def _events(self, headers: np.ndarray, records: _Records) -> pa.Table:
        """The columns of records. Counts what was lost of them."""
        from kprof.capture.directory import event_schema

        launch = headers["launch"].astype(np.int32)
        region, num_unknown = self.region_ids.translate(
            launch, records.local_region, records.chunk_idxs
        )
        payload = (records.second >> np.uint64(32)).astype(np.uint32)
        block, hw_id = _programs(headers, records, payload)
        flags = self._flags(region, records.duration_ticks, payload)
        self.tally.add_events(region, flags, num_unknown)
        columns = [
            np.full(len(region), self._rank, dtype=np.int32),
            launch[records.chunk_idxs],
            block,
            warps_of(headers).astype(np.int16)[records.chunk_idxs],
            region,
            flags,
            records.start_ns,
            records.duration_ns,
            payload,
            hw_id,
        ]
        return pa.Table.from_arrays([pa.array(column) for column in columns], schema=event_schema())

    def _times(
        self,
        first: np.ndarray,
        duration_ticks: np.ndarray,
        headers: np.ndarray,
        chunk_idxs: np.ndarray,
        cycle_map: CycleMap | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Start times and durations in ns."""
        rate = self._clock.ticks_per_second
        anchors = headers["anchor_realtime_ticks"]
        if cycle_map is None:
            start_ticks = unwrap(first, anchors[chunk_idxs])
            return self._to_ns(start_ticks), ticks_to_ns(duration_ticks, rate)
        is_cycles = headers["flags"] & abi.CHUNK_CYCLES != 0
        start_ticks = unwrap(
            first, np.where(is_cycles, headers["anchor_cycles"], anchors)[chunk_idxs]
        )
        start_ns = self._to_ns(start_ticks)
        duration_ns = ticks_to_ns(duration_ticks, rate)
        rows = np.flatnonzero(is_cycles[chunk_idxs])
        place = headers["launch"][chunk_idxs[rows]], headers["hw_id"][chunk_idxs[rows]]
        start_ns[rows] = cycle_map.to_ns(*place, start_ticks[rows])
        end_ns = cycle_map.to_ns(*place, start_ticks[rows] + duration_ticks[rows])
        duration_ns[rows] = end_ns - start_ns[rows]
        return start_ns, duration_ns

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


def _programs(
    headers: np.ndarray, records: _Records, payload: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The block and the hw_id of each record. Clears the payload of those whose chunk several
    programs share, see kprof.abi."""
    block = headers["block"].astype(np.int32)[records.chunk_idxs]
    hw_id = headers["hw_id"][records.chunk_idxs]
    are_shared = headers["flags"] & abi.CHUNK_OF_PROGRAMS != 0
    if are_shared.any():
        rows = are_shared[records.chunk_idxs]
        block[rows] += records.slots[rows].astype(np.int32)
        hw_id[rows] = payload[rows]
        payload[rows] = 0
    return block, hw_id


def _are_times(start_ns: np.ndarray, duration_ns: np.ndarray) -> np.ndarray:
    """Whether these can be times of events: none is from before the clock began."""
    are_times: np.ndarray = (start_ns >= 0) & is_within(start_ns, "start_ns")
    are_times &= is_within(duration_ns, "duration_ns")
    return are_times


def _ends_of(values: np.ndarray) -> np.ndarray:
    """The least and the greatest of some values; nothing where there are none."""
    return np.array([values.min(), values.max()]) if len(values) else values


def _count_true(rows: np.ndarray) -> np.ndarray:
    """How many of each row are true. Their sum in bytes takes a third of the time of
    np.count_nonzero, and fits: a chunk has 61 slots."""
    return rows.view(np.uint8).sum(axis=1, dtype=np.uint8).astype(np.intp)


def _count_torn(chunks: Chunks, is_record: np.ndarray, num_records: np.ndarray) -> int:
    """Count slots without a region that are not empty, or that an ordered track skipped."""
    num_slots = is_record.shape[1]
    num_places = num_slots - np.argmax(is_record[:, ::-1], axis=1)
    num_places[num_records == 0] = 0
    num_places[chunks.must_be_full] = num_slots
    num_skipped = np.where(chunks.may_have_gaps, 0, num_places - num_records)
    contents = chunks.words[:, _HEADER_WORDS::2] | chunks.words[:, _HEADER_WORDS + 1 :: 2]
    rows = np.flatnonzero(_count_true(contents != 0) > num_records)
    has_contents = ~is_record[rows] & (contents[rows] != 0)
    is_beyond = np.arange(num_slots) >= num_places[rows, np.newaxis]
    is_beyond |= chunks.may_have_gaps[rows, np.newaxis]
    # What was skipped and has contents counts once.
    return int(num_skipped.sum() + np.count_nonzero(has_contents & is_beyond))


def _field_lookups(regions: Sequence[Region]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Shift and mask by region id, for the first, second ... payload field.

    The mask is 0 if the region has no such field.
    """
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
