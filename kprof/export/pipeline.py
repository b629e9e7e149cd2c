"""Passes a Trace to a Writer: rank by rank, piece by piece, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kprof.export.counters import UNITS, RankCounters
from kprof.export.flows import Flows, joined_flows
from kprof.export.grouping import Grouping
from kprof.export.level_of_detail import Detail, DetailChooser, MergedNames, find_neighbours, merge
from kprof.export.model import (
    FIRST_EVENT_NS,
    Batch,
    CounterPoints,
    Header,
    OverlayLine,
    OverlaySlice,
    Writer,
)
from kprof.export.overview import bins_per_block, overview
from kprof.export.source import Piece, RawEvents, Source, end_sql
from kprof.export.tracks import Nesting, RankTracks, describe_ranks, keys_by_rank, nest
from kprof.regions import Kind
from kprof.trace import Trace

_EVERYTHING: Final = Detail(0, 1 << 62)
Progress = Callable[[float], None]


@dataclass
class Tally:
    """Counts what went into the file."""

    num_slices: int = 0
    num_flows: int = 0
    num_tracks: int = 0
    num_merged: int = 0
    num_cut: int = 0
    num_backwards: int = 0
    has_sampled_counters: bool = False
    detail: Detail = _EVERYTHING
    origin_ns: int = 0
    last_ns: int = 0


def run(
    trace: Trace,
    writer: Writer,
    max_slices: int | None,
    progress: Progress,
    overlays: tuple[OverlayLine, ...],
    grouping: Grouping,
) -> Tally:
    """Write the whole trace, with the lines of overlays.

    `progress` gets fractions from 0 to 1.
    """
    shown = {info.rank for info in trace.ranks}
    overlays = tuple(line for line in overlays if line.rank in shown)
    slices = [slice_ for line in overlays for slice_ in line.slices]
    source = Source.of(trace, grouping, slices)
    tally = Tally(origin_ns=source.origin_ns, last_ns=source.last_ns)
    is_too_much = max_slices is not None and source.num_events > max_slices
    merged_names = MergedNames.of(source.names) if is_too_much else None
    names = merged_names.names if merged_names else source.names
    writer.begin(Header(names, describe_ranks(trace), source.last_ns))
    steps = _Steps(source, progress, num_passes=2 if is_too_much else 1)
    if is_too_much and max_slices is not None:
        tally.detail = _choose_detail(source, max_slices, steps)
    _Run(source, writer, merged_names, tally, steps, overlays).all_ranks()
    writer.end()
    progress(1.0)
    return tally


class _Steps:
    """Progress by events done."""

    def __init__(self, source: Source, progress: Progress, num_passes: int) -> None:
        self._total = max(1, source.num_events * num_passes)
        self._done = 0
        self._progress = progress

    def advance(self, num_events: int) -> None:
        self._done += num_events
        self._progress(self._done / self._total)


def _choose_detail(source: Source, max_slices: int, steps: _Steps) -> Detail:
    """A first pass over the events, without flows and names."""
    chooser = DetailChooser(source.last_ns)
    for rank, keys in keys_by_rank(source).items():
        tracks = RankTracks(rank, "", 1, keys, source.grouping)
        for piece in source.pieces(rank):
            events = source.read(piece)
            track, nesting = tracks.place(events, source.names)
            batch = _plain_batch(events, track)
            chooser.add(find_neighbours(batch, events.launch, nesting.depth, source.names))
            steps.advance(piece.num_events)
    return chooser.choose(max_slices)


@dataclass
class _Run:
    """The second pass: everything to the writer."""

    source: Source
    writer: Writer
    merged_names: MergedNames | None
    tally: Tally
    steps: _Steps
    overlays: tuple[OverlayLine, ...]

    @cached_property
    def bins_per_block(self) -> tuple[int, int]:
        """The number of bins of a block's overview, and of a pinned block's."""
        return bins_per_block(self.source)

    @cached_property
    def is_value(self) -> NDArray[np.bool_]:
        """Whether each name is that of a value."""
        return np.array([region.kind is Kind.VALUE for region in self.source.names])

    def all_ranks(self) -> None:
        keys = keys_by_rank(self.source)
        launches = _launches_by_rank(self.source)
        names = {rank.rank: rank.name for rank in describe_ranks(self.source.trace)}
        next_id = 1
        with joined_flows(self.source) as (flows_of, num_backwards):
            self.tally.num_backwards = num_backwards
            for rank, of_rank in keys.items():
                tracks = RankTracks(rank, names[rank], next_id, of_rank, self.source.grouping)
                self._rank(rank, tracks, flows_of, launches.get(rank, []))
                self.writer.tracks(tracks.take_new())
                idle = [key.block for key in of_rank if not key.num_events]
                self.writer.events(_idle_marks(tracks.of_blocks(idle)))
                next_id = tracks.next_id
        # Without the process of each rank, which has no line.
        self.tally.num_tracks = next_id - 1 - len(keys)

    def _rank(
        self,
        rank: int,
        tracks: RankTracks,
        flows_of: Callable[[Piece], Flows],
        launches: list[OverlaySlice],
    ) -> None:
        # Kernels do not nest: a launch within the time of another one runs concurrently.
        self._write_line(tracks, tracks.launches, launches, may_nest=False)
        self._write_overlays(tracks)
        writer, pieces = self.writer, self.source.pieces(rank)
        num_events = sum(piece.num_events for piece in pieces)
        counters = RankCounters(self.source.names, num_events, self.source.last_ns)
        for piece in pieces:
            events, flows = self.source.read(piece), flows_of(piece)
            counters.add(events, flows)
            track, nesting = tracks.place(events, self.source.names)
            batch = self._batch(events, track, nesting, flows)
            writer.tracks(tracks.take_new())
            writer.events(batch)
            bins, bins_if_pinned = self.bins_per_block
            of_block = tracks.block_tracks(pinned_only=not bins)
            bins = bins or bins_if_pinned
            writer.launches(overview(events, nesting, self.source.names, of_block, bins))
            self._count(events, batch)
            self.steps.advance(piece.num_events)
        if self.source.grouping.is_by_block:
            # They count blocks, which other groupings split up.
            self._write_counters(tracks, counters)

    def _batch(
        self, events: RawEvents, track: NDArray[np.int64], nesting: Nesting, flows: Flows
    ) -> Batch:
        batch = replace(
            _plain_batch(events, track),
            flow_out=flows.out_of(events.event_id),
            flow_in=flows.into(events.event_id),
            late_ns=flows.late_ns(events.event_id, events.start_ns),
        )
        detail = self.tally.detail
        if self.merged_names is None:
            return batch
        neighbours = find_neighbours(batch, events.launch, nesting.depth, self.source.names)
        merged = merge(batch, neighbours, detail, self.merged_names)
        return merged.rows(merged.start_ns < detail.until_ns)

    def _count(self, events: RawEvents, batch: Batch) -> None:
        tally = self.tally
        is_event = ~self.is_value[np.minimum(batch.name, len(self.is_value) - 1)]
        tally.num_slices += int(is_event.sum())
        tally.num_flows += int(np.count_nonzero(batch.flow_out))
        tally.num_merged += int(batch.num_merged[batch.num_merged > 1].sum())
        tally.num_cut += len(events) - int(batch.num_merged.sum())

    def _write_overlays(self, tracks: RankTracks) -> None:
        origin_ns = self.source.origin_ns
        for line in self.overlays:
            if line.rank != tracks.rank:
                continue
            slices = [
                replace(s, start_ns=s.start_ns - origin_ns, end_ns=s.end_ns - origin_ns)
                for s in line.slices
            ]
            self._write_line(tracks, tracks.overlay(line.name), slices, may_nest=True)

    def _write_line(
        self, tracks: RankTracks, track: int, slices: list[OverlaySlice], may_nest: bool
    ) -> None:
        """The slices of one line, on as many lanes as overlaps need."""
        slices = sorted(slices, key=lambda slice_: (slice_.start_ns, -slice_.end_ns))
        starts = np.array([slice_.start_ns for slice_ in slices], dtype=np.int64)
        ends = np.array([slice_.end_ns for slice_ in slices], dtype=np.int64)
        nesting = nest(np.zeros(len(slices), dtype=np.int64), starts, ends)
        lanes = nesting.lane if may_nest else nesting.lane + nesting.depth
        placed = [
            replace(slice_, track=tracks.lane(track, lane))
            for slice_, lane in zip(slices, lanes.tolist(), strict=True)
        ]
        self.writer.tracks(tracks.take_new())
        self.writer.launches(placed)

    def _write_counters(self, tracks: RankTracks, counters: RankCounters) -> None:
        points = [
            CounterPoints(tracks.counter(name, UNITS[name]), times, values)
            for name, (times, values) in counters.points().items()
        ]
        self.tally.has_sampled_counters |= counters.is_sampled
        self.writer.tracks(tracks.take_new())
        for counter in points:
            self.writer.counter(counter)


def _plain_batch(events: RawEvents, track: NDArray[np.int64]) -> Batch:
    """The events with their tracks, without flows, and nothing merged."""
    none, ones = np.zeros(len(track), np.int64), np.ones(len(track), np.int32)
    busy_ns = events.end_ns - events.start_ns
    own = (events.name, events.flags, events.start_ns, events.end_ns, events.payload)
    return Batch(track, *own, none, none, none, ones, busy_ns)


def _idle_marks(track: NDArray[np.int64]) -> Batch:
    """One mark per track, at the beginning."""
    none = np.zeros(len(track), dtype=np.int64)
    start_ns = none + FIRST_EVENT_NS
    name, flags = none.astype(np.int32), none.astype(np.uint8)
    events = RawEvents(none, none, none, none, name, flags, start_ns, start_ns, none)
    return _plain_batch(events, track)


def _launches_by_rank(source: Source) -> dict[int, list[OverlaySlice]]:
    query = f"""
        SELECT e.rank, e.launch, any_value(e.kernel) AS kernel, any_value(e.ordinal) AS ordinal,
            any_value(l.num_blocks) AS num_blocks,
            any_value(l.threads_per_block) AS threads_per_block,
            min(e.start_ns) - {source.origin_ns} AS start_ns,
            max({end_sql("e.", source.last_ns + source.origin_ns)}) - {source.origin_ns} AS end_ns
        FROM events e LEFT JOIN launches l ON l.rank = e.rank AND l.launch = e.launch
        GROUP BY e.rank, e.launch ORDER BY e.rank, e.launch"""
    slices: dict[int, list[OverlaySlice]] = {}
    for row in source.trace.records(query):
        slices.setdefault(row["rank"], []).append(_launch_slice(row))
    return slices


def _launch_slice(row: dict[str, Any]) -> OverlaySlice:
    args = {
        name: int(row[name])
        for name in ("launch", "ordinal", "num_blocks", "threads_per_block")
        if row[name] is not None
    }
    name = row["kernel"] or f"launch {row['launch']}"
    return OverlaySlice(name, "launch", int(row["start_ns"]), int(row["end_ns"]), args)
