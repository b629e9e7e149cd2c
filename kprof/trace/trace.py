"""The trace: every rank's events on one clock, ready for questions.

A Trace is immutable. It holds the capture's metadata and a DuckDB connection with these views. All
analyses and exports run over the views, so none needs all events in memory:

    events    one row per record: event_id, rank, launch, kernel, ordinal, block, warp, region_id,
              region, category, kind, flags, start_ns, end_ns, duration_ns, payload, hw_id, and one
              column per payload field (peer, slot, bytes always; NULL where the region has no such
              field)
    flows     one row per wait that a send released (kprof.trace.flows says how they are joined):
              send_event_id, wait_event_id, send_region, wait_region, kernel, ordinal, src, dst,
              slot, send_block, send_warp, send_start_ns, send_end_ns, wait_block, wait_warp,
              wait_start_ns, wait_end_ns
    regions   id, name, category, kind, moment (issue, or complete: ends with its memory operations)
    launches  rank, launch, kernel, ordinal, num_blocks, threads_per_block
    ranks     rank, host, target, device, arch

Two things are slow, so they wait until they are needed: the files are compared with their checksums
before the first event is read (`require_events`), and sends are joined with waits before the first
flow is (`require_flows`). SQL that names `events` or `flows` needs neither call: DuckDB misses the
table behind the view, and it is loaded.

Times are nanoseconds of the reference rank's clock where the capture is aligned, else of each
rank's own clock. `warp` is -1 for a track of the whole block.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kprof.capture.database import locked_database
from kprof.capture.directory import Capture
from kprof.capture.manifest import Alignment, Manifest, RankInfo
from kprof.capture.printable import utf8
from kprof.capture.rank_summary import stored_summary
from kprof.errors import ClockError, SelectionError
from kprof.regions import Region, RegionTable, merge_tables
from kprof.trace.queries import Queries, reading
from kprof.trace.selection import fields_of_words
from kprof.trace.views import (
    Selection,
    Source,
    can_use_summaries,
    close_events,
    create_views,
    cut_sql,
    fill_flows,
    open_events,
)

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import pyarrow as pa
    from typing_extensions import Self

    from kprof.trace.flows.launches import Side

# Nobody reads a sentence with more numbers.
_MAX_NAMED: Final = 16


class Trace(Queries):
    """All events of a capture on one clock. `Trace.open` makes one, `Trace.from_table` in tests."""

    def __init__(
        self,
        manifest: Manifest,
        source: Source,
        selection: Selection,
        whole: Trace | None = None,
    ) -> None:
        self.manifest = manifest
        self.selection = selection
        # The whole trace: which launch answers which depends on all launches.
        self._whole = whole or self
        # Its files have to be checked (`source.checksums`) before one is read.
        self.source = source
        self._merged = merge_tables([info.regions for info in manifest.ranks])
        self._con = locked_database([*source.files, *(path for _, path in source.summaries)])
        self._loading = threading.RLock()
        if selection.time_ns is not None:
            # Its views need the start of the first event.
            source.checksums.check(source.files)
        self._has_events = not source.checksums.unread(source.files)
        self._has_flows = False
        with reading():
            create_views(self._con, manifest, self._merged, source, selection)
            if not self._has_events:
                close_events(self._con)

    @classmethod
    def open(cls, path: str | Path | Capture) -> Self:
        """Open a capture directory; raises a CaptureError."""
        capture = path if isinstance(path, Capture) else Capture.open(path)
        files = tuple(capture.events_path(info.rank) for info in capture.manifest.ranks)
        source = Source(files, None, _stored_summaries(capture), capture.checksums)
        return cls(capture.manifest, source, Selection())

    @classmethod
    def from_table(cls, manifest: Manifest, events: pa.Table) -> Self:
        """A trace over an in-memory table with the columns of `capture.event_schema()`."""
        return cls(manifest, Source(table=events), Selection())

    @property
    def regions(self) -> RegionTable:
        """The regions of all kernels and ranks, merged by name."""
        return self._merged.table

    @property
    def ranks(self) -> tuple[RankInfo, ...]:
        """The ranks that were recorded and are selected."""
        wanted = self.selection.ranks
        return tuple(info for info in self.manifest.ranks if wanted is None or info.rank in wanted)

    @property
    def summarised_ranks(self) -> frozenset[int]:
        """The selected ranks whose stored summaries hold for this selection."""
        if not can_use_summaries(self.selection):
            return frozenset()
        stored = {rank for rank, _ in self.source.summaries}
        return frozenset(info.rank for info in self.ranks if info.rank in stored)

    @property
    def whole_files(self) -> dict[int, Path]:
        """The files of the selected ranks if they are selected whole.

        Empty for traces in memory.
        """
        if replace(self.selection, ranks=None) != Selection():
            return {}
        files = dict(
            zip((info.rank for info in self.manifest.ranks), self.source.files, strict=False)
        )
        return {info.rank: files[info.rank] for info in self.ranks if info.rank in files}

    @property
    def local_regions(self) -> dict[int, dict[int, Region]]:
        """By rank: the regions as that rank declared them, by their ids in `regions`."""
        return {
            info.rank: {ids[region.id]: region for region in info.regions.regions}
            for info, ids in zip(self.manifest.ranks, self._merged.id_maps, strict=True)
        }

    @property
    def flow_sides(self) -> tuple[Side, ...]:
        """Which launches send and wait for each other, over the whole capture."""
        return self._whole._flow_sides

    @cached_property
    def _flow_sides(self) -> tuple[Side, ...]:
        from kprof.trace.flows.launches import flow_sides

        return flow_sides(self)

    @cached_property
    def cut_sql(self) -> str:
        """SQL: is a raw event `e` with its clock segment `c` in the selected blocks and times?"""
        with reading():
            return cut_sql(self._con, self.selection)

    @property
    def alignment(self) -> Alignment | None:
        """How the ranks' clocks were aligned, or None when they were not."""
        return self.manifest.alignment

    @property
    def is_on_one_clock(self) -> bool:
        """Whether times of different ranks can be compared, or one rank only is selected."""
        return self.manifest.is_on_one_clock or len(self.ranks) <= 1

    def require_alignment(self, what: str) -> Alignment | None:
        """Refuse a cross-rank number on unaligned clocks; None where there is only one rank."""
        if not self.is_on_one_clock:
            note = self.manifest.alignment_note or "the recording has no clock calibration"
            needs = f"needs the ranks on one clock, and they are not: {note}"
            still = "numbers within one rank still hold"
            raise ClockError(f"{what} {needs}; {still}", f"this {needs}; {still}")
        return self.alignment

    def select(self, **words: Any) -> Self:
        """The part of the trace that these options of the command line select; None takes one back.

        ranks, blocks, launches   1, "0-3,7" or a list of numbers; `rank=1` is `ranks=1`, and so on
        regions                   "dispatch/*,copy" or a list of names
        time                      "10us..50us" after the first event; an end may be missing
        time_ns                   the same as a pair of numbers

            trace.select(rank=1, regions="dispatch/*", time="10us..50us")

        Raises SelectionError for any other word, for text that does not parse, and for unknown
        ranks and regions.
        """
        selection = replace(self.selection, **fields_of_words(words, self.regions.names))
        _check_selection(self, selection)
        return type(self)(self.manifest, self.source, selection, self._whole)

    def query(self, text: str) -> pa.Table:
        """Run a user's SQL over the views: one SELECT, whose input is the capture and nothing else.

        Raises SelectionError if it does not parse or is another statement, which could write files.
        """
        import duckdb

        text = utf8(text)
        with reading():
            statements = duckdb.extract_statements(text)
        if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
            raise SelectionError(
                "the query is not one SELECT statement over the views, which is all that kprof "
                "runs; write a SELECT, or open the Parquet files of the capture in DuckDB itself"
            )
        self.require_events()
        return self.sql(text)

    def to_pandas(self) -> pd.DataFrame:
        """All selected events, by rank, block, warp and start."""
        return self.frame("SELECT * FROM events ORDER BY rank, block, warp, start_ns, end_ns DESC")

    def window_ns(self) -> tuple[int, int]:
        """First start and last end of all selected events; (0, 0) when there are none."""
        row = self._row("SELECT min(start_ns), max(end_ns) FROM events")
        return (0, 0) if row[0] is None else (int(row[0]), int(row[1]))

    def origin_ns(self) -> int:
        """The first start of all events, selected or not: time 0 of a selection."""
        (first_ns,) = self._row("SELECT coalesce(min(start_ns), 0) FROM all_events")
        return int(first_ns)

    def num_events(self) -> int:
        """How many events are selected."""
        if self.whole_files:
            # What the footers say (Manifest.with_events_found): no file needs to be read.
            return sum(info.counts.recorded for info in self.ranks)
        # Counting records reads no column; the view would align every event first.
        row = self._row("SELECT count(*) FROM selected_raw_events")
        return int(row[0])

    def is_empty(self) -> bool:
        """Whether no event is selected; stops at the first one that is."""
        return len(self.frame("SELECT 1 FROM selected_raw_events LIMIT 1")) == 0

    def new_connection(self) -> duckdb.DuckDBPyConnection:
        """Another connection to the same views, for tables that are not the trace's (Workspace)."""
        return self._con.cursor()

    def require_events(self) -> None:
        """Let queries read events. Raises CorruptCaptureError if a file was changed: the first call
        reads all files."""
        with self._loading:
            if not self._has_events:
                self.source.checksums.check(self.source.files)
                open_events(self._con, self.source)
                self._has_events = True

    def require_flows(self) -> None:
        """Let queries read flows. The first call joins all sends with their waits; raises like
        `require_events`."""
        from kprof.trace.flows.table import flow_pairs

        self.require_events()
        with self._loading, reading():
            if not self._has_flows:
                fill_flows(self._con, flow_pairs(self))
                self._has_flows = True

    def _load_next(self) -> bool:
        if not self._has_events:
            self.require_events()
        elif not self._has_flows:
            self.require_flows()
        else:
            return False
        return True

    def _row(self, query: str) -> tuple[Any, ...]:
        """The only row; fetching all ends the query, which a fetch of one would leave open."""
        with reading():
            return self._run(lambda: self._con.execute(query)).fetchall()[0]


def _stored_summaries(capture: Capture) -> tuple[tuple[int, Path], ...]:
    size = capture.manifest.world_size
    found = [
        (info.rank, stored_summary(capture.events_path(info.rank), info.rank, size))
        for info in capture.manifest.ranks
    ]
    stored = [(rank, path) for rank, path in found if path is not None]
    changed = capture.checksums.changed(path for _, path in stored)
    return tuple((rank, path) for rank, path in stored if path not in changed)


def _check_selection(trace: Trace, selection: Selection) -> None:
    known_ranks = {info.rank for info in trace.manifest.ranks}
    unknown_ranks = sorted(set(selection.ranks or ()) - known_ranks)
    if unknown_ranks:
        recorded = sorted(known_ranks)
        named = f"{len(recorded)} from {recorded[0]} to {recorded[-1]}" if recorded else "none"
        raise SelectionError(
            f"rank {unknown_ranks[0]} was not recorded; "
            f"recorded: {recorded if 0 < len(recorded) <= _MAX_NAMED else named}"
        )
    unknown_regions = sorted(set(selection.regions or ()) - set(trace.regions.names))
    if unknown_regions:
        raise SelectionError(
            f"no region is called {unknown_regions[0]!r}; known: {', '.join(trace.regions.names)}"
        )
