"""The SQL behind a Trace: views that turn rank-local columns and ids into aligned times and names.

All joins are against tables of a few rows (regions, launches, clock segments), so a view costs
little more than reading the columns that a query names. docs/own_kernel.md lists the columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb
import numpy as np

from kprof.capture.checks import EVENT_COLUMNS
from kprof.capture.checksums import Checksums
from kprof.capture.database import sql_name, sql_text
from kprof.capture.directory import EVENT_OPEN
from kprof.capture.manifest import ClockSegment, Launch, Manifest, RankInfo
from kprof.capture.rank_summary import NO_PARTS_SQL
from kprof.on_use import pa
from kprof.regions import MergedTables, Region, RegionTable
from kprof.trace.queries import insert

if TYPE_CHECKING:
    from kprof.capture.database import Arrays

# SQL: is an event a wait that a hang left open? It lasts as long as it was seen open; other open
# spans have no length. Only captures with a `hang` in their manifest have such events; do not scan
# the events of others for them.
STILL_WAITING: Final = f"flags & {EVENT_OPEN} <> 0 AND duration_ns > 0"
# An event's position in its rank's file, with the rank in the bits above: unique in the capture.
EVENT_ID_RANK_SHIFT: Final = 40
STANDARD_FIELDS: Final = ("peer", "slot", "bytes")
# The columns of the view `events` that files do not have.
_ADDED_COLUMNS: Final = frozenset(
    ["event_id", "kernel", "ordinal", "region_id", "category", "kind", "end_ns"]
)
# What the tables have of a region, a launch and a rank, and a row for a table that has none.
_OF_REGION: Final = ("id", "name", "category", "kind", "moment", "place")
_OF_LAUNCH: Final = ("launch", "kernel", "ordinal", "num_blocks", "threads_per_block")
_OF_RANK: Final = ("rank", "host", "target", "device", "arch")
_NO_REGION: Final = Region(-1, "")
_NO_LAUNCH: Final = Launch(-1, "", 0)
_UNCHANGED: Final = ClockSegment(0, 0.0)
_BEGIN_NS: Final = -(1 << 62)
# Behind the end of every event that a capture may hold (kprof.capture.checks).
_END_NS: Final = (1 << 62) + (1 << 54)


@dataclass(frozen=True)
class Selection:
    """Which events a trace shows. None means all; `time_ns` is (from, to) after the first event."""

    ranks: tuple[int, ...] | None = None
    blocks: tuple[int, ...] | None = None
    launches: tuple[int, ...] | None = None
    regions: tuple[str, ...] | None = None
    time_ns: tuple[int, int] | None = None


@dataclass(frozen=True)
class Source:
    """Where events come from: Parquet files or one Arrow table; and stored summaries, by rank.

    `checksums` are asked before `files` are read.
    """

    files: tuple[Path, ...] = ()
    table: pa.Table | None = None
    summaries: tuple[tuple[int, Path], ...] = ()
    checksums: Checksums = dataclasses.field(default_factory=Checksums)


def create_views(
    con: duckdb.DuckDBPyConnection,
    manifest: Manifest,
    merged: MergedTables,
    source: Source,
    selection: Selection,
) -> None:
    """Create every table and view in `con`."""
    launches = [(info.rank, launch) for info in manifest.ranks for launch in info.launches]
    tables: dict[str, list[dict[str, object]]] = {
        "raw_regions": _region_rows(manifest.ranks, merged),
        "regions": [_row(each, _OF_REGION) for each in merged.table.regions or (_NO_REGION,)],
        "launches": [
            {"rank": rank} | _row(launch, _OF_LAUNCH)
            for rank, launch in launches or [(-1, _NO_LAUNCH)]
        ],
        "ranks": [_row(info, _OF_RANK) for info in manifest.ranks],
        "clock_segments": _clock_rows(manifest),
        "flow_rules": [
            {"rule": i, "send": rule.send, "wait": rule.wait, "in_block": rule.in_block}
            for i, rule in enumerate(merged.table.flows)
        ]
        or [{"rule": -1, "send": -1, "wait": -1, "in_block": False}],
    }
    for name, rows in tables.items():
        insert(con, f"CREATE TABLE {name} AS", _table(rows))
    # Tables without rows got one, for the types of their columns.
    con.execute("DELETE FROM regions WHERE id < 0")
    con.execute("DELETE FROM launches WHERE rank < 0")
    open_events(con, source)
    con.execute(f"CREATE VIEW all_events AS {_events_sql(merged.table)}")
    con.execute(f"CREATE VIEW events AS SELECT * FROM all_events {_where(con, selection)}")
    # The view outlives the table, which `fill_flows` makes again.
    con.execute(f"CREATE TABLE flow_pairs {_FLOW_PAIRS_SQL}")
    con.execute(f"CREATE VIEW flows AS {_FLOWS_SQL}")
    con.execute("DROP TABLE flow_pairs")
    con.execute(
        "CREATE VIEW selected_raw_events AS SELECT e.* FROM raw_events e "
        + _raw_where(con, selection)
    )
    con.execute(f"CREATE VIEW stored_parts AS {_stored_parts_sql(source, selection)}")


def _table(rows: list[dict[str, object]]) -> Arrays:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {
        name: np.array(values, object if isinstance(values[0], str) else None)
        for name, values in columns.items()
    }


def _row(of: object, names: Sequence[str]) -> dict[str, object]:
    return {name: getattr(of, name) for name in names}


def _region_rows(ranks: Sequence[RankInfo], merged: MergedTables) -> list[dict[str, object]]:
    """One row per (rank, local region id); unknown ids of a rank are handled by the LEFT JOIN."""
    rows: list[dict[str, object]] = []
    fields = field_names(merged.table)
    for info, id_map in zip(ranks, merged.id_maps, strict=True):
        for local in info.regions.regions:
            row: dict[str, object] = {"rank": info.rank, "local_id": local.id}
            row |= _row(merged.table[id_map[local.id]], _OF_REGION)
            for name in fields:
                field = local.field(name)
                row[f"{name}_shift"] = field.shift if field else None
                row[f"{name}_mask"] = field.mask if field else None
            rows.append(row)
    empty = {"rank": -1, "local_id": -1} | _row(_NO_REGION, _OF_REGION)
    return rows or [empty | {f"{name}_{part}": 0 for name in fields for part in ("shift", "mask")}]


def field_names(table: RegionTable) -> list[str]:
    """Payload columns of the `events` view: the standard ones, and other names that hide no column.

    Names that differ only in case are one column, as in SQL; the first spelling names it.
    """
    names = {name: name for name in STANDARD_FIELDS}
    for region in table.regions:
        for field in region.fields:
            names.setdefault(field.name.lower(), field.name)
    taken = _ADDED_COLUMNS.union(EVENT_COLUMNS)
    return [name for lower, name in names.items() if lower not in taken]


def _clock_rows(manifest: Manifest) -> list[dict[str, object]]:
    """Segments with both ends; the first reaches back to the beginning of time."""
    aligned = (
        {entry.rank: entry.segments for entry in manifest.alignment.ranks}
        if manifest.alignment
        else {}
    )
    rows: list[dict[str, object]] = []
    for info in manifest.ranks:
        segments = aligned.get(info.rank) or (_UNCHANGED,)
        bounds = (_BEGIN_NS, *(segment.from_ns for segment in segments[1:]), _END_NS)
        for segment, (from_ns, until_ns) in zip(segments, pairwise(bounds), strict=True):
            rows.append(
                {
                    "rank": info.rank,
                    "from_ns": from_ns,
                    "until_ns": until_ns,
                    "origin_ns": segment.from_ns,
                    "offset_ns": segment.offset_ns,
                    "drift": segment.drift_ppm * 1e-6,
                }
            )
    return rows


def _raw_events_sql(con: duckdb.DuckDBPyConnection, source: Source) -> str:
    if source.table is not None:
        insert(con, "CREATE TABLE event_table AS", _with_row_numbers(source.table))
        return "SELECT * FROM event_table"
    files = ", ".join(sql_text(str(file)) for file in source.files)
    return f"SELECT * FROM read_parquet([{files}], file_row_number = true)"


def open_events(con: duckdb.DuckDBPyConnection, source: Source) -> None:
    """Let queries read the events: their files are as they were written."""
    con.execute(f"CREATE VIEW raw_events AS {_raw_events_sql(con, source)}")


def fill_flows(con: duckdb.DuckDBPyConnection, pairs: Iterable[Arrays]) -> None:
    """Let queries read the flows: `kprof.trace.flows` says which send released which wait."""
    con.execute(f"CREATE OR REPLACE TABLE new_flow_pairs {_FLOW_PAIRS_SQL}")
    for table in pairs:
        insert(con, "INSERT INTO new_flow_pairs BY NAME", table)
    con.execute("ALTER TABLE new_flow_pairs RENAME TO flow_pairs")


def _with_row_numbers(table: pa.Table) -> pa.Table:
    """Number the rows of each rank once, as a file does: every query sees the same event ids."""
    rank = table["rank"].to_numpy()
    order = np.argsort(rank, kind="stable")
    firsts = np.searchsorted(rank[order], rank)
    numbers = np.empty(len(rank), dtype=np.int64)
    numbers[order] = np.arange(len(rank))
    return table.append_column("file_row_number", [numbers - firsts])


def _events_sql(table: RegionTable) -> str:
    """Local ticks and ids to aligned times and names."""
    fields = ",\n".join(
        f"CAST((e.payload >> r.{sql_name(f'{name}_shift')}) "
        f"& r.{sql_name(f'{name}_mask')} AS BIGINT)"
        f" AS {sql_name(name)}"
        for name in field_names(table)
    )
    return f"""
        SELECT (CAST(e.rank AS BIGINT) << {EVENT_ID_RANK_SHIFT}) + e.file_row_number AS event_id,
            e.rank, e.launch, coalesce(l.kernel, '') AS kernel, coalesce(l.ordinal, 0) AS ordinal,
            e.block, e.warp,
            coalesce(r.id, 0) AS region_id,
            coalesce(r.name, 'unknown region ' || e.region) AS region,
            coalesce(r.category, 'other') AS category, coalesce(r.kind, 'span') AS kind, e.flags,
            {aligned_sql("e.start_ns")} AS start_ns,
            {aligned_sql("e.start_ns + e.duration_ns")} AS end_ns,
            {aligned_sql("e.start_ns + e.duration_ns")} - {aligned_sql("e.start_ns")}
                AS duration_ns,
            e.payload, e.hw_id, {fields}
        FROM raw_events e
        JOIN clock_segments c ON {segment_of("e.rank", "e.start_ns")}
        LEFT JOIN raw_regions r ON r.rank = e.rank AND r.local_id = e.region
        LEFT JOIN launches l ON l.rank = e.rank AND l.launch = e.launch"""


def segment_of(rank: str, local: str, segment: str = "c") -> str:
    """The condition that finds the clock segment of a rank's local time."""
    return (
        f"{segment}.rank = {rank} AND {local} >= {segment}.from_ns AND {local} < {segment}.until_ns"
    )


def aligned_sql(local: str, segment: str = "c") -> str:
    """A local time on the clock of all ranks, by its segment."""
    drift = f"{segment}.drift * (({local}) - {segment}.origin_ns)"
    return f"(({local}) + CAST(round({segment}.offset_ns + {drift}) AS BIGINT))"


_FLOW_PAIRS_SQL: Final = """(
        send_event_id BIGINT, wait_event_id BIGINT, rule SMALLINT, launch INTEGER, src INTEGER,
        dst INTEGER, slot BIGINT, send_block INTEGER, send_warp SMALLINT,
        send_start_ns BIGINT, send_end_ns BIGINT,
        wait_block INTEGER, wait_warp SMALLINT, wait_start_ns BIGINT, wait_end_ns BIGINT)"""
_FLOWS_SQL: Final = """
    SELECT p.send_event_id, p.wait_event_id, s.name AS send_region, w.name AS wait_region,
        coalesce(l.kernel, '') AS kernel, coalesce(l.ordinal, 0) AS ordinal, p.src, p.dst, p.slot,
        p.send_block, p.send_warp, p.send_start_ns, p.send_end_ns,
        p.wait_block, p.wait_warp, p.wait_start_ns, p.wait_end_ns
    FROM flow_pairs p JOIN flow_rules f ON f.rule = p.rule
    JOIN regions s ON s.id = f.send JOIN regions w ON w.id = f.wait
    LEFT JOIN launches l ON l.rank = p.dst AND l.launch = p.launch"""


def _where(con: duckdb.DuckDBPyConnection, selection: Selection) -> str:
    terms = ["true", *number_terms(selection)]
    if selection.regions is not None:
        terms.append(f"region IN ({_region_list(selection.regions)})")
    if selection.time_ns is not None:
        first, last = _absolute_ns(con, selection.time_ns)
        terms.append(f"start_ns < {last} AND end_ns >= {first}")
    return f"WHERE {' AND '.join(terms)}"


def _raw_where(con: duckdb.DuckDBPyConnection, selection: Selection) -> str:
    """The same selection of records in rank-local times and ids; joins only what it needs."""
    join, terms = "", ["true", *number_terms(selection, "e.")]
    if selection.regions is not None:
        names = _region_list(selection.regions)
        regions = f"SELECT rank, local_id FROM raw_regions WHERE name IN ({names})"
        terms.append(f"(e.rank, e.region) IN ({regions})")
    if selection.time_ns is not None:
        join = f" JOIN clock_segments c ON {segment_of('e.rank', 'e.start_ns')}"
        terms += _raw_time_terms(con, selection.time_ns)
    return f"{join} WHERE {' AND '.join(terms)}"


def cut_sql(con: duckdb.DuckDBPyConnection, selection: Selection) -> str:
    """SQL: is a record `e` with its clock segment `c` among the selected blocks and times?"""
    terms = number_terms(Selection(blocks=selection.blocks), "e.")
    if selection.time_ns is not None:
        terms += _raw_time_terms(con, selection.time_ns)
    return f"({' AND '.join(terms) or 'true'})"


def _stored_parts_sql(source: Source, selection: Selection) -> str:
    """The stored summaries if they hold for this selection.

    None for part of the regions or times.
    """
    if not source.summaries or not can_use_summaries(selection):
        return NO_PARTS_SQL
    files = ", ".join(sql_text(str(path)) for _, path in source.summaries)
    where = " AND ".join(["true", *number_terms(selection)])
    return f"SELECT * FROM read_parquet([{files}]) WHERE {where}"


def can_use_summaries(selection: Selection) -> bool:
    """Whether the cells and tracks of summaries add up to this selection. Their buckets do not
    where blocks are selected: they are of all blocks."""
    return selection.regions is None and selection.time_ns is None


def launches_sql(selection: Selection, columns: str = "*") -> str:
    """The selected rows of `launches`, which know no blocks."""
    terms = ["true", *number_terms(dataclasses.replace(selection, blocks=None))]
    return f"SELECT {columns} FROM launches WHERE {' AND '.join(terms)}"


def number_terms(selection: Selection, prefix: str = "") -> list[str]:
    """Conditions in SQL for the selected numbers of ranks, blocks and launches."""
    columns = {"rank": selection.ranks, "block": selection.blocks, "launch": selection.launches}
    return [
        f"{prefix}{column} IN ({', '.join(str(int(value)) for value in values) or 'NULL'})"
        for column, values in columns.items()
        if values is not None
    ]


def _region_list(names: Sequence[str]) -> str:
    return ", ".join(sql_text(name) for name in names) or "NULL"


def _raw_time_terms(con: duckdb.DuckDBPyConnection, time_ns: tuple[int, int]) -> list[str]:
    first, last = _absolute_ns(con, time_ns)
    end = aligned_sql("e.start_ns + e.duration_ns")
    return [f"{aligned_sql('e.start_ns')} < {last}", f"{end} >= {first}"]


def _absolute_ns(con: duckdb.DuckDBPyConnection, time_ns: tuple[int, int]) -> tuple[int, int]:
    """Times after the first event of the trace, as aligned times."""
    ((origin,),) = con.execute("SELECT coalesce(min(start_ns), 0) FROM all_events").fetchall()
    return origin + int(time_ns[0]), origin + int(time_ns[1])
