"""The trace: every rank's events on one clock, ready for questions.

A Trace is immutable. It holds the capture's metadata and a DuckDB connection with these views, over which all analyses
and exports run, so that nothing needs all events in memory:

    events    one row per record: event_id, rank, launch, kernel, ordinal, block, warp, region_id, region, category,
              kind, flags, start_ns, end_ns, duration_ns, payload, hw_id, and one column per payload field (peer,
              slot, bytes always; NULL where the region has no such field)
    flows     one row per send that released a wait: send_event_id, wait_event_id, send_region, wait_region,
              kernel, ordinal, src, dst, slot, send_block, send_warp, send_start_ns, send_end_ns, wait_block, wait_warp,
              wait_start_ns, wait_end_ns
    regions   id, name, category, kind
    launches  rank, launch, kernel, ordinal, num_blocks, threads_per_block
    ranks     rank, host, target, device, arch

Times are nanoseconds of the reference rank's clock where the capture is aligned, of each rank's own clock otherwise.
`warp` is -1 for a track of the whole block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kprof.capture import EVENT_OPEN, Alignment, Capture, Launch, Manifest, RankInfo
from kprof.errors import ClockError, CorruptCaptureError, SelectionError
from kprof.regions import MergedTables, Region, RegionTable, merge_tables

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import pyarrow as pa

# The position of an event in its rank's file, with the rank in the bits above: unique over the capture.
EVENT_ID_RANK_SHIFT: Final = 40
STANDARD_FIELDS: Final = ("peer", "slot", "bytes")
_BASE_COLUMNS: Final = frozenset(
    [
        "event_id",
        "rank",
        "launch",
        "kernel",
        "ordinal",
        "block",
        "warp",
        "region_id",
        "region",
        "category",
        "kind",
        "flags",
        "start_ns",
        "end_ns",
        "duration_ns",
        "payload",
        "hw_id",
    ]
)


@dataclass(frozen=True)
class Selection:
    """Which events a trace shows. None means all; `time_ns` is (from, to) relative to the first event of the trace."""

    ranks: tuple[int, ...] | None = None
    blocks: tuple[int, ...] | None = None
    launches: tuple[int, ...] | None = None
    regions: tuple[str, ...] | None = None
    time_ns: tuple[int, int] | None = None


class Trace:
    """All events of a capture on one clock. Make one with `Trace.open` (or `Trace.from_table` in tests)."""

    def __init__(self, manifest: Manifest, source: _Source, selection: Selection) -> None:
        self.manifest = manifest
        self.selection = selection
        self._source = source
        self._merged = _merge_rank_tables(manifest.ranks)
        self._con = _connect(source)
        _create_views(self._con, manifest, self._merged, source, selection)

    @staticmethod
    def open(path: str | Path | Capture) -> Trace:
        """Open a capture directory; raises a CaptureError."""
        capture = path if isinstance(path, Capture) else Capture.open(path)
        files = tuple(capture.events_path(info.rank) for info in capture.manifest.ranks)
        return Trace(capture.manifest, _Source(files=files), Selection())

    @staticmethod
    def from_table(manifest: Manifest, events: pa.Table) -> Trace:
        """A trace over an in-memory table with the columns of `capture.event_schema()`."""
        return Trace(manifest, _Source(table=events), Selection())

    @property
    def regions(self) -> RegionTable:
        """The regions of all kernels and ranks, united by name."""
        return self._merged.table

    @property
    def ranks(self) -> tuple[RankInfo, ...]:
        """The ranks that were recorded and are selected."""
        wanted = self.selection.ranks
        return tuple(info for info in self.manifest.ranks if wanted is None or info.rank in wanted)

    @property
    def alignment(self) -> Alignment | None:
        """How the ranks' clocks were put on one, or None when they were not."""
        return self.manifest.alignment

    def require_alignment(self, what: str) -> Alignment | None:
        """Refuse a cross-rank number on unaligned clocks; None when there is one rank only and nothing to align."""
        if self.alignment is None and len(self.manifest.ranks) > 1:
            reason = self.manifest.alignment_note or "the recording has no clock calibration"
            raise ClockError(
                f"{what} needs the ranks on one clock, and they are not: {reason}; "
                "numbers within one rank still hold"
            )
        return self.alignment

    def select(self, **changes: Any) -> Trace:
        """A trace narrowed by the given fields of Selection; raises SelectionError for unknown ranks or regions."""
        selection = replace(self.selection, **changes)
        _check_selection(self, selection)
        return Trace(self.manifest, self._source, selection)

    def sql(self, query: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """Run a query over the views; raises SelectionError if it does not parse, CorruptCaptureError on bad files."""
        with _reading():
            table: pa.Table = self._relation(query, parameters).to_arrow_table()
        return table

    def frame(self, query: str, parameters: Sequence[Any] = ()) -> pd.DataFrame:
        """Like `sql`, as a pandas DataFrame."""
        with _reading():
            return self._con.execute(query, parameters).df()

    def batches(self, query: str, rows_per_batch: int = 1 << 17) -> pa.RecordBatchReader:
        """Like `sql`, streamed: for exports of more events than memory holds."""
        with _reading():
            return self._relation(query, ()).to_arrow_reader(rows_per_batch)

    def to_pandas(self) -> pd.DataFrame:
        """All selected events, by rank, block, warp and start."""
        return self.frame("SELECT * FROM events ORDER BY rank, block, warp, start_ns, end_ns DESC")

    def window_ns(self) -> tuple[int, int]:
        """First start and last end of all selected events; (0, 0) when there are none."""
        row = self._row("SELECT min(start_ns), max(end_ns) FROM events")
        return (0, 0) if row[0] is None else (int(row[0]), int(row[1]))

    def num_events(self) -> int:
        """How many events are selected."""
        row = self._row("SELECT count(*) FROM events")
        return int(row[0])

    def _relation(self, query: str, parameters: Sequence[Any]) -> duckdb.DuckDBPyRelation:
        relation = self._con.sql(query, params=list(parameters) or None)
        if relation is None:
            raise SelectionError("the query gives no rows; write a SELECT over the views")
        return relation

    def _row(self, query: str) -> tuple[Any, ...]:
        """The only row; fetching all ends the query, which a fetch of one would leave open."""
        with _reading():
            return self._con.execute(query).fetchall()[0]


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Turn what DuckDB raises into one sentence; bad bytes may show up late, when results are fetched."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        # Damaged pages raise whatever the decoder stumbles over; what a query can be blamed for is known.
        is_the_querys = isinstance(
            error,
            duckdb.ProgrammingError
            | duckdb.DataError
            | duckdb.NotSupportedError
            | duckdb.PermissionException
            | duckdb.OutOfMemoryException,
        ) and not isinstance(error, duckdb.InvalidInputException)
        if is_the_querys:
            raise SelectionError(f"the query was refused: {_first_line(error)}") from error
        raise CorruptCaptureError(
            f"reading the capture failed: {_first_line(error)}; record again or restore the file"
        ) from error


@dataclass(frozen=True)
class _Source:
    """Where the events come from: Parquet files, or one Arrow table."""

    files: tuple[Path, ...] = ()
    table: pa.Table | None = None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _merge_rank_tables(ranks: Sequence[RankInfo]) -> MergedTables:
    return merge_tables([info.regions for info in ranks])


def _connect(source: _Source) -> duckdb.DuckDBPyConnection:
    """A private in-memory database that can read the capture's own files and nothing else."""
    import duckdb

    con = duckdb.connect(":memory:")
    con.execute("SET preserve_insertion_order = false")
    con.execute("SET enable_progress_bar = false")
    if source.files:
        allowed = ", ".join(_quote(str(file)) for file in source.files)
        con.execute(f"SET allowed_paths = [{allowed}]")
    con.execute("SET enable_external_access = false")
    return con


def _create_views(
    con: duckdb.DuckDBPyConnection,
    manifest: Manifest,
    merged: MergedTables,
    source: _Source,
    selection: Selection,
) -> None:
    _register(con, "raw_regions", _region_rows(manifest.ranks, merged))
    _register(
        con, "regions", [_region_row(region) for region in merged.table.regions] or [_NO_REGION]
    )
    _register(
        con,
        "launches",
        [_launch_row(info.rank, launch) for info in manifest.ranks for launch in info.launches]
        or [_launch_row(-1, Launch(-1, "", 0))],
    )
    _register(con, "ranks", [_rank_row(info) for info in manifest.ranks])
    _register(con, "clock_segments", _clock_rows(manifest))
    _register(
        con,
        "flow_rules",
        [
            {"send": merged.table[rule.send].id, "wait": merged.table[rule.wait].id}
            for rule in merged.table.flows
        ]
        or [{"send": -1, "wait": -1}],
    )
    con.execute(f"CREATE VIEW raw_events AS {_raw_events_sql(con, source)}")
    con.execute(f"CREATE VIEW all_events AS {_events_sql(merged.table)}")
    con.execute(f"CREATE VIEW events AS SELECT * FROM all_events {_where(con, selection)}")
    con.execute(f"CREATE VIEW flows AS {_FLOWS_SQL}")


_NO_REGION: Final = {"id": -1, "name": "", "category": "other", "kind": "span"}


def _register(con: duckdb.DuckDBPyConnection, name: str, rows: list[dict[str, Any]]) -> None:
    """A small table inside the database, from dicts of one shape."""
    import pyarrow as pa

    con.register("incoming", pa.Table.from_pylist(rows))
    con.execute(f"CREATE TABLE {name} AS SELECT * FROM incoming")
    con.unregister("incoming")


def _region_row(region: Region) -> dict[str, Any]:
    return {
        "id": region.id,
        "name": region.name,
        "category": region.category.value,
        "kind": region.kind.value,
    }


def _region_rows(ranks: Sequence[RankInfo], merged: MergedTables) -> list[dict[str, Any]]:
    """One row per (rank, local region id); unknown ids of a rank are handled by the LEFT JOIN."""
    rows = []
    fields = field_names(merged.table)
    for info, id_map in zip(ranks, merged.id_maps, strict=True):
        for local in info.regions.regions:
            row = {"rank": info.rank, "local_id": local.id} | _region_row(
                merged.table[id_map[local.id]]
            )
            for name in fields:
                field = local.field(name)
                row[f"{name}_shift"] = field.shift if field else None
                row[f"{name}_mask"] = field.mask if field else None
            rows.append(row)
    empty: dict[str, Any] = {"rank": -1, "local_id": -1} | _NO_REGION
    return rows or [empty | {f"{name}_{part}": 0 for name in fields for part in ("shift", "mask")}]


def field_names(table: RegionTable) -> list[str]:
    """Payload columns of the `events` view: the standard ones and every other name, unless it hides a base column."""
    names = dict.fromkeys(STANDARD_FIELDS)
    for region in table.regions:
        names |= dict.fromkeys(
            field.name for field in region.fields if field.name not in _BASE_COLUMNS
        )
    return list(names)


def _launch_row(rank: int, launch: Launch) -> dict[str, Any]:
    return {
        "rank": rank,
        "launch": launch.launch,
        "kernel": launch.kernel,
        "ordinal": launch.ordinal,
        "num_blocks": launch.num_blocks,
        "threads_per_block": launch.threads_per_block,
    }


def _rank_row(info: RankInfo) -> dict[str, Any]:
    return {
        "rank": info.rank,
        "host": info.host,
        "target": info.target,
        "device": info.device,
        "arch": info.arch,
    }


def _clock_rows(manifest: Manifest) -> list[dict[str, Any]]:
    """Segments with both ends; the first reaches back to the beginning of time."""
    aligned = (
        {entry.rank: entry.segments for entry in manifest.alignment.ranks}
        if manifest.alignment
        else {}
    )
    rows = []
    for info in manifest.ranks:
        segments = aligned.get(info.rank, ())
        starts = [segment.from_ns for segment in segments]
        for i, segment in enumerate(segments):
            rows.append(
                {
                    "rank": info.rank,
                    "from_ns": -(1 << 62) if i == 0 else starts[i],
                    "until_ns": starts[i + 1] if i + 1 < len(starts) else 1 << 62,
                    "origin_ns": segment.from_ns,
                    "offset_ns": segment.offset_ns,
                    "drift": segment.drift_ppm * 1e-6,
                }
            )
        if not segments:
            rows.append(
                {
                    "rank": info.rank,
                    "from_ns": -(1 << 62),
                    "until_ns": 1 << 62,
                    "origin_ns": 0,
                    "offset_ns": 0.0,
                    "drift": 0.0,
                }
            )
    return rows


def _raw_events_sql(con: duckdb.DuckDBPyConnection, source: _Source) -> str:
    if source.table is not None:
        con.register("event_table", _with_row_numbers(source.table))
        return "SELECT * FROM event_table"
    files = ", ".join(_quote(str(file)) for file in source.files)
    return f"SELECT * FROM read_parquet([{files}], file_row_number = true)"


def _with_row_numbers(table: pa.Table) -> pa.Table:
    """Number the rows of each rank, as a file does; numbered once, so that every query sees the same event ids."""
    import numpy as np
    import pyarrow as pa

    rank = table["rank"].to_numpy()
    order = np.argsort(rank, kind="stable")
    firsts = np.searchsorted(rank[order], rank)
    numbers = np.empty(len(rank), dtype=np.int64)
    numbers[order] = np.arange(len(rank))
    return table.append_column("file_row_number", pa.array(numbers - firsts))


def _events_sql(table: RegionTable) -> str:
    """Local ticks and ids to aligned times and names; all joins are against tables of a few rows."""
    fields = ",\n".join(
        f"CAST((e.payload >> r.{name}_shift) & r.{name}_mask AS BIGINT) AS {name}"
        for name in field_names(table)
    )
    return f"""
        SELECT (CAST(e.rank AS BIGINT) << {EVENT_ID_RANK_SHIFT}) + e.file_row_number AS event_id,
            e.rank, e.launch, coalesce(l.kernel, '') AS kernel, coalesce(l.ordinal, 0) AS ordinal, e.block, e.warp,
            coalesce(r.id, 0) AS region_id,
            coalesce(r.name, 'unknown region ' || e.region) AS region,
            coalesce(r.category, 'other') AS category, coalesce(r.kind, 'span') AS kind, e.flags,
            {_aligned("e.start_ns")} AS start_ns,
            {_aligned("e.start_ns + e.duration_ns")} AS end_ns,
            {_aligned("e.start_ns + e.duration_ns")} - {_aligned("e.start_ns")} AS duration_ns,
            e.payload, e.hw_id, {fields}
        FROM raw_events e
        JOIN clock_segments c ON c.rank = e.rank AND e.start_ns >= c.from_ns AND e.start_ns < c.until_ns
        LEFT JOIN raw_regions r ON r.rank = e.rank AND r.local_id = e.region
        LEFT JOIN launches l ON l.rank = e.rank AND l.launch = e.launch"""


def _aligned(local: str) -> str:
    return f"(({local}) + CAST(round(c.offset_ns + c.drift * (({local}) - c.origin_ns)) AS BIGINT))"


# A slot is used again in later launches and may be used again within one: the n-th send meets the n-th wait.
# Not materialized, so that a question about one rank or one slot reads only its events.
_FLOWS_SQL: Final = f"""
    WITH ends AS NOT MATERIALIZED (
        SELECT e.*, row_number() OVER (
            PARTITION BY e.rank, e.region_id, e.ordinal, e.peer, e.slot
            ORDER BY e.start_ns, e.event_id) AS occurrence
        FROM events e
        WHERE e.region_id IN (SELECT send FROM flow_rules UNION SELECT wait FROM flow_rules)
          AND e.flags & {EVENT_OPEN} = 0)
    SELECT s.event_id AS send_event_id, w.event_id AS wait_event_id,
        s.region AS send_region, w.region AS wait_region, w.kernel, w.ordinal,
        s.rank AS src, w.rank AS dst, s.slot,
        s.block AS send_block, s.warp AS send_warp, s.start_ns AS send_start_ns, s.end_ns AS send_end_ns,
        w.block AS wait_block, w.warp AS wait_warp, w.start_ns AS wait_start_ns, w.end_ns AS wait_end_ns
    FROM flow_rules f
    JOIN ends s ON s.region_id = f.send
    JOIN ends w ON w.region_id = f.wait AND w.peer = s.rank AND s.peer = w.rank AND w.slot = s.slot
        AND w.ordinal = s.ordinal AND w.occurrence = s.occurrence"""


def _where(con: duckdb.DuckDBPyConnection, selection: Selection) -> str:
    terms = []
    for column, values in (
        ("rank", selection.ranks),
        ("block", selection.blocks),
        ("launch", selection.launches),
    ):
        if values is not None:
            terms.append(
                f"{column} IN ({', '.join(str(int(value)) for value in values) or 'NULL'})"
            )
    if selection.regions is not None:
        terms.append(
            f"region IN ({', '.join(_quote(name) for name in selection.regions) or 'NULL'})"
        )
    if selection.time_ns is not None:
        ((origin,),) = con.execute("SELECT coalesce(min(start_ns), 0) FROM all_events").fetchall()
        first, last = (origin + int(value) for value in selection.time_ns)
        terms.append(f"start_ns < {last} AND end_ns >= {first}")
    return f"WHERE {' AND '.join(terms)}" if terms else ""


def _check_selection(trace: Trace, selection: Selection) -> None:
    known_ranks = {info.rank for info in trace.manifest.ranks}
    unknown_ranks = sorted(set(selection.ranks or ()) - known_ranks)
    if unknown_ranks:
        raise SelectionError(
            f"rank {unknown_ranks[0]} was not recorded; recorded: {sorted(known_ranks)}"
        )
    unknown_regions = sorted(set(selection.regions or ()) - set(trace.regions.names))
    if unknown_regions:
        raise SelectionError(
            f"no region is called {unknown_regions[0]!r}; known: {', '.join(trace.regions.names)}"
        )


def _quote(text: str) -> str:
    """A SQL string literal."""
    return "'" + text.replace("'", "''") + "'"
