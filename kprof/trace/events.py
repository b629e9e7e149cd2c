"""The events of a capture on one clock, as views for SQL: what flows are joined from."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from kprof.capture.database import locked_database
from kprof.capture.manifest import Alignment, Manifest, RankInfo
from kprof.errors import ClockError
from kprof.on_use import pd
from kprof.regions import Region, RegionTable, merge_tables
from kprof.trace.queries import Queries, reading
from kprof.trace.views import (
    Selection,
    Source,
    can_use_summaries,
    create_views,
    cut_sql,
    open_events,
)


class Events(Queries):
    """The selected events of a capture: metadata, and a DuckDB connection with the views."""

    def __init__(self, manifest: Manifest, source: Source, selection: Selection) -> None:
        self.manifest = manifest
        self.selection = selection
        # Its files have to be checked (`source.checksums`) before one is read.
        self.source = source
        self._merged = merge_tables([info.regions for info in manifest.ranks])
        self._con = locked_database([*source.files, *(path for _, path in source.summaries)])
        self._loading = threading.RLock()
        if selection.time_ns is not None:
            # Its views need the start of the first event.
            source.checksums.check(source.files)
        self._has_events = not source.checksums.unread(source.files)
        with reading():
            create_views(self._con, manifest, self._merged, source, selection)
            if not self._has_events:
                # Until `require_events`.
                self._con.execute("DROP VIEW raw_events")

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

    def to_pandas(self) -> pd.DataFrame:
        """All selected events, by rank, block, warp and start."""
        return self.frame("SELECT * FROM events ORDER BY rank, block, warp, start_ns, end_ns DESC")

    def window_ns(self) -> tuple[int, int]:
        """First start and last end of all selected events; (0, 0) when there are none."""
        row = self.row("SELECT min(start_ns), max(end_ns) FROM events")
        return (0, 0) if row[0] is None else (int(row[0]), int(row[1]))

    def origin_ns(self) -> int:
        """The first start of all events, selected or not: time 0 of a selection."""
        (first_ns,) = self.row("SELECT coalesce(min(start_ns), 0) FROM all_events")
        return int(first_ns)

    def num_events(self) -> int:
        """How many events are selected."""
        if self.whole_files:
            # What the footers say (Manifest.with_events_found): no file needs to be read.
            return sum(info.counts.recorded for info in self.ranks)
        # Counting records reads no column; the view would align every event first.
        row = self.row("SELECT count(*) FROM selected_raw_events")
        return int(row[0])

    def is_empty(self) -> bool:
        """Whether no event is selected; stops at the first one that is."""
        return len(self.frame("SELECT 1 FROM selected_raw_events LIMIT 1")) == 0

    def require_events(self) -> None:
        """Let queries read events. Raises CorruptCaptureError if a file was changed: the first call
        reads all files."""
        with self._loading:
            if not self._has_events:
                self.source.checksums.check(self.source.files)
                open_events(self._con, self.source)
                self._has_events = True

    def _load_next(self) -> bool:
        if self._has_events:
            return False
        self.require_events()
        return True
