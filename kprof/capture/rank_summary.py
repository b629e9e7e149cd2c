"""Sums over the events of a rank: small tables beside the events in the capture.

    run.kprof/
      rank-00003.parquet      the events
      summary-00003.parquet   their summary (the columns below), which the rank writes last

A summary depends on one rank's events and nothing else: times are the rank's own, region ids those
of its own table. So each rank makes its own, and the summary of a capture is all of them, one after
the other; alignment and merged region ids are applied to them as to events. A report of many ranks
reads summaries, and events only where it looks closer. A missing, outdated or damaged summary is
made again from the events, also for captures from before there were any.

One Parquet file holds three tables, told apart by `part` and sorted by it; columns that a part
lacks are null:

    cell     rank, launch, block, region, peer
             -> events, total_ns, min_ns, max_ns, bytes, first_ns, last_ns
    track    rank, launch, block, warp
             -> events, work_ns, wait_ns, first_ns, last_ns, first_useful_ns, last_useful_ns
    bucket   rank, launch, region, bucket
             -> events      (log2 histogram of durations, SUB_BUCKETS per octave)

`region` 0 is an undeclared one; `peer` is -1 where a region names none, or one outside the world.
Only closed spans count: open ones have no end, marks and values no duration. `wait_ns` is the union
of a track's waits, `work_ns` the union of its compute, send and recv spans minus the waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from kprof.capture.checks import (
    EVENT_BOUNDS,
    MAX_ROWS_PER_RANK,
    column_faults,
    has_columns,
    read_footer,
)
from kprof.capture.database import locked_database, sql_text
from kprof.capture.directory import EVENT_OPEN, Capture
from kprof.capture.footers import Footers, footer_of, read_footers
from kprof.capture.manifest import MAX_RANKS, RankInfo
from kprof.capture.names import events_file_name, summary_file_name
from kprof.capture.output import completing
from kprof.errors import CorruptCaptureError
from kprof.on_use import duckdb, pa, pq
from kprof.regions import Kind, RegionTable

if TYPE_CHECKING:
    from kprof.capture.database import Arrays

# Grows when the meaning of a column changes: summaries of another version are made again.
SUMMARY_VERSION: Final = 1
SUB_BUCKETS: Final = 16
# Events sorted at a time: 2 M rows of a track's key and two times take about 0.1 GB, and sort
# faster per row than larger sets.
EVENTS_PER_SLICE: Final = 2_000_000
WORK_CATEGORIES: Final = ("compute", "send", "recv")
WAIT_CATEGORIES: Final = ("wait", "sync")
_METADATA_KEY: Final = b"kprof_summary"

# Sums over ranks must stay within 64 bits.
_SUM: Final = (0, 1 << 56)
_TIME: Final = (
    EVENT_BOUNDS["start_ns"][0],
    EVENT_BOUNDS["start_ns"][1] + EVENT_BOUNDS["duration_ns"][1],
)
# The columns of all parts, with their types as DuckDB and Arrow call them, and what their numbers
# are in.
_COLUMNS: Final[dict[str, tuple[str, tuple[int, int] | None]]] = {
    "part": ("string", None),
    "rank": ("int32", None),
    "launch": ("int32", EVENT_BOUNDS["launch"]),
    "block": ("int32", EVENT_BOUNDS["block"]),
    "warp": ("int16", EVENT_BOUNDS["warp"]),
    "region": ("uint16", None),
    "peer": ("int32", (-1, MAX_RANKS)),
    "bucket": ("int32", (0, 64 * SUB_BUCKETS)),
    "events": ("int64", (0, MAX_ROWS_PER_RANK)),
    "total_ns": ("int64", _SUM),
    "min_ns": ("int64", EVENT_BOUNDS["duration_ns"]),
    "max_ns": ("int64", EVENT_BOUNDS["duration_ns"]),
    "bytes": ("int64", _SUM),
    "first_ns": ("int64", _TIME),
    "last_ns": ("int64", _TIME),
    "work_ns": ("int64", _SUM),
    "wait_ns": ("int64", _SUM),
    "first_useful_ns": ("int64", _TIME),
    "last_useful_ns": ("int64", _TIME),
}
PARTS_TABLE_SQL: Final = "CREATE OR REPLACE TEMP TABLE parts ({})".format(
    ", ".join(f"{name} {kind}" for name, (kind, _) in _COLUMNS.items())
)
NO_PARTS_SQL: Final = "SELECT {} WHERE false".format(
    ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, (kind, _) in _COLUMNS.items())
)


class SummaryOf(msgspec.Struct, frozen=True):
    """What a stored summary was made from.

    It is valid only for a file and world of the same size.
    """

    version: int
    num_events: int
    world_size: int


def write_summary(directory: Path, info: RankInfo, world_size: int) -> Path:
    """Summarise the events that a rank has written, into a file beside them.

    Raises CaptureError.
    """
    events = directory / events_file_name(info.rank)
    made_of = SummaryOf(SUMMARY_VERSION, footer_of(events).num_rows, world_size)
    schema = pa.schema(
        [(name, kind) for name, (kind, _) in _COLUMNS.items()],
        {_METADATA_KEY: msgspec.json.encode(made_of)},
    )
    table = pa.table(summarise_file(events, info, world_size), schema)
    final = directory / summary_file_name(info.rank)
    with completing(final) as temporary:
        pq.write_table(table, temporary, compression="zstd", row_group_size=1 << 16)
    return final


def summarise_file(events: Path, info: RankInfo, world_size: int) -> Arrays:
    """The three parts of a rank's summary, from its file of events; raises CorruptCaptureError."""
    return summarise_files([events], [info], world_size)


def summarise_files(files: Sequence[Path], infos: Sequence[RankInfo], world_size: int) -> Arrays:
    """The summaries of ranks that share a region table, in one table.

    Raises CorruptCaptureError.
    """
    launches = sorted({launch.launch for info in infos for launch in info.launches})
    source = f"read_parquet([{', '.join(sql_text(str(file)) for file in files)}])"
    try:
        # One thread: the other ranks of this host summarise at the same time.
        with locked_database(files, num_threads=1) as con:
            con.execute(PARTS_TABLE_SQL)
            ((num_events,),) = con.execute(f"SELECT count(*) FROM {source}").fetchall()
            for where in track_slices(num_events, launches):
                for statement in part_statements(source, where, infos[0].regions, world_size):
                    con.execute(statement)
            table: Arrays = con.sql(
                "SELECT * FROM parts ORDER BY part, rank, launch, block, warp, region, peer, bucket"
            ).fetchnumpy()
            for column in table.values():
                if isinstance(column, np.ma.MaskedArray):
                    # Dask cannot send narrow columns with numpy's own, 999999.
                    column.fill_value = 0
            return table
    except duckdb.Error as error:
        raise CorruptCaptureError(
            f"reading {files[0]} failed: {str(error).splitlines()[0]}; "
            "record again or restore the file"
        ) from error


def stored_summaries(capture: Capture) -> dict[int, Path]:
    """The valid summaries beside the files of events, by rank."""
    ranks = capture.manifest.ranks
    paths = {info.rank: capture.path / summary_file_name(info.rank) for info in ranks}
    footers = read_footers(paths.values()) if capture.footers is None else capture.footers
    size = capture.manifest.world_size
    made_of = {info.rank: SummaryOf(SUMMARY_VERSION, info.counts.recorded, size) for info in ranks}
    return {r: path for r, path in paths.items() if _is_valid(path, r, footers, made_of[r])}


def _is_valid(path: Path, rank: int, footers: Footers, made_of: SummaryOf) -> bool:
    bounds = {"rank": (rank, rank)}
    bounds |= {name: ends for name, (_, ends) in _COLUMNS.items() if ends}
    try:
        footer = read_footer(path, footers)
        is_current = made_of == msgspec.json.decode(footer.texts[_METADATA_KEY], type=SummaryOf)
        faults = column_faults(path, footer, bounds, may_be_null=True)
        return is_current and has_columns(footer, _COLUMNS) and not any(faults)
    except (CorruptCaptureError, msgspec.DecodeError, RecursionError, KeyError):
        return False


def track_slices(num_events: int, launches: Sequence[int]) -> Iterator[str]:
    """Conditions that cut a rank's events into sets of whole tracks of about EVENTS_PER_SLICE.

    By launches where there are enough: a file holds them one after the other, so the rest is not
    read.
    """
    parts = max(1, -(-num_events // EVENTS_PER_SLICE))
    if parts == 1:
        yield "true"
    elif len(launches) >= parts:
        numbers = sorted(launches)
        firsts = [numbers[i * len(numbers) // parts] for i in range(parts)]
        yield f"launch < {firsts[1]}"
        for first, after in zip(firsts[1:], [*firsts[2:], None], strict=True):
            yield f"launch >= {first}" + ("" if after is None else f" AND launch < {after}")
    else:
        yield from (f"block % {parts} = {i}" for i in range(parts))


def part_statements(
    source: str, where: str, regions: RegionTable, world_size: int
) -> tuple[str, ...]:
    """SQL that adds the parts of some events to the table `parts`.

    `source` has the columns of a rank's Parquet file, for ranks that share a region table; `where`
    selects whole tracks of it.
    """
    spans = _Spans.of(regions, world_size)
    chosen = f"{source} WHERE {spans.closed} AND {where}"
    return (
        _cells_sql(chosen, spans),
        _buckets_sql(chosen, spans),
        _flat_tracks_sql(chosen, spans),
        _FLAT_SQL,
        _nested_tracks_sql(chosen, spans),
        "DROP TABLE flat_tracks",
    )


def bucket_statement(source: str, where: str, regions: RegionTable, world_size: int) -> str:
    """The part of `part_statements` that adds buckets."""
    spans = _Spans.of(regions, world_size)
    return _buckets_sql(f"{source} WHERE {spans.closed} AND {where}", spans)


@dataclass(frozen=True)
class _Spans:
    """What a region table says about raw records, as SQL expressions."""

    closed: str
    waits: str
    works: str
    region: str
    peer: str
    size_bytes: str

    @staticmethod
    def of(table: RegionTable, world_size: int) -> _Spans:
        regions = table.regions
        points = [region.id for region in regions if region.kind is not Kind.SPAN]
        waits = [region.id for region in regions if region.category.value in WAIT_CATEGORIES]
        works = [region.id for region in regions if region.category.value in WORK_CATEGORIES]
        peer = _field(table, "peer")
        return _Spans(
            closed=f"flags & {EVENT_OPEN} = 0 AND NOT {_is_in('region', points)}",
            waits=_is_in("region", waits),
            works=_is_in("region", works),
            region=f"CASE WHEN region <= {len(regions)} THEN region ELSE 0 END",
            peer=(
                f"coalesce(CASE WHEN {peer} < {int(world_size)} "
                f"THEN CAST({peer} AS INTEGER) END, -1)"
            ),
            size_bytes=f"coalesce({_field(table, 'bytes')}, 0)",
        )


def _field(table: RegionTable, name: str) -> str:
    """A payload field; NULL for regions without it. Regions with the same layout share a branch."""
    layouts: dict[tuple[int, int], list[int]] = {}
    for region in table.regions:
        field = region.field(name)
        if field is not None:
            layouts.setdefault((field.shift, field.mask), []).append(region.id)
    if not layouts:
        return "CAST(NULL AS BIGINT)"
    branches = " ".join(
        f"WHEN {_is_in('region', ids)} THEN CAST((payload >> {shift}) & {mask} AS BIGINT)"
        for (shift, mask), ids in layouts.items()
    )
    return f"(CASE {branches} END)"


def _is_in(column: str, ids: Iterable[int]) -> str:
    listed = ", ".join(map(str, ids))
    return f"({column} IN ({listed}))" if listed else "(false)"


def _cells_sql(chosen: str, spans: _Spans) -> str:
    return f"""
        INSERT INTO parts BY NAME
        SELECT 'cell' AS part, rank, launch, block, {spans.region} AS region, {spans.peer} AS peer,
            count(*) AS events, CAST(sum(duration_ns) AS BIGINT) AS total_ns,
            min(duration_ns) AS min_ns,
            max(duration_ns) AS max_ns, CAST(sum({spans.size_bytes}) AS BIGINT) AS bytes,
            min(start_ns) AS first_ns, max(start_ns + duration_ns) AS last_ns
        FROM {chosen} GROUP BY 2, 3, 4, 5, 6"""


def _buckets_sql(chosen: str, spans: _Spans) -> str:
    return f"""
        INSERT INTO parts BY NAME
        SELECT 'bucket' AS part, rank, launch, {spans.region} AS region,
            CAST(floor(log2(greatest(duration_ns, 1)) * {SUB_BUCKETS}) AS INTEGER) AS bucket,
            count(*) AS events
        FROM {chosen} GROUP BY 2, 3, 4, 5"""


def _busy_spans(chosen: str, spans: _Spans) -> str:
    return f"""SELECT rank, launch, block, warp,
            start_ns, start_ns + duration_ns AS end_ns, duration_ns,
        {spans.waits} AS waits, {spans.works} AS works FROM {chosen}"""


def _flat_tracks_sql(chosen: str, spans: _Spans) -> str:
    """Sums per track.

    Where no useful or waiting span overlaps the one before it, sums are unions.
    """
    return f"""
        CREATE OR REPLACE TEMP TABLE flat_tracks AS
        WITH ordered AS (
            SELECT *, lag(end_ns) OVER (PARTITION BY rank, launch, block, warp, waits OR works
                ORDER BY start_ns, end_ns) AS before
            FROM ({_busy_spans(chosen, spans)}))
        SELECT rank, launch, block, warp, count(*) AS events,
            coalesce(CAST(sum(duration_ns) FILTER (works) AS BIGINT), 0) AS work_ns,
            coalesce(CAST(sum(duration_ns) FILTER (waits) AS BIGINT), 0) AS wait_ns,
            {_EDGES},
            coalesce(bool_or(before > start_ns) FILTER (waits OR works), false) AS is_nested
        FROM ordered GROUP BY rank, launch, block, warp"""


_EDGES: Final = """min(start_ns) AS first_ns, max(end_ns) AS last_ns,
            min(start_ns) FILTER (works) AS first_useful_ns,
            max(end_ns) FILTER (works) AS last_useful_ns"""

_FLAT_SQL: Final = """
    INSERT INTO parts BY NAME
    SELECT 'track' AS part, * EXCLUDE (is_nested) FROM flat_tracks WHERE NOT is_nested"""


def _nested_tracks_sql(chosen: str, spans: _Spans) -> str:
    """Unions by a sweep: an interval adds the part beyond the furthest end before it.

    Time in a wait is waiting even inside a useful span (an outer region around everything), so work
    is |useful or wait| - |wait|; where spans do not nest, that is the union of the useful ones.
    """
    return f"""
        INSERT INTO parts BY NAME
        WITH swept AS (
            SELECT *, max(end_ns) FILTER (waits OR works) OVER before AS busy_until,
                max(end_ns) FILTER (waits) OVER before AS waited_until
            FROM ({_busy_spans(chosen, spans)}) SEMI JOIN (FROM flat_tracks WHERE is_nested)
                USING (rank, launch, block, warp)
            WINDOW before AS (PARTITION BY rank, launch, block, warp ORDER BY start_ns
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)),
        measured AS (
            SELECT rank, launch, block, warp, count(*) AS events,
                coalesce(
                    sum(greatest(0, end_ns - greatest(start_ns, busy_until)))
                    FILTER (waits OR works), 0)
                    AS busy_ns,
                coalesce(
                    sum(greatest(0, end_ns - greatest(start_ns, waited_until)))
                    FILTER (waits), 0) AS wait_ns,
                {_EDGES}
            FROM swept GROUP BY rank, launch, block, warp)
        SELECT 'track' AS part, * EXCLUDE (busy_ns, wait_ns),
            CAST(busy_ns - wait_ns AS BIGINT) AS work_ns,
            CAST(wait_ns AS BIGINT) AS wait_ns
        FROM measured"""
