"""What the footers of Parquet files say, which may be anyone's.

DuckDB reads those of finished captures, all at once. Those of parts are pyarrow's, which wrote
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from kprof.capture.database import locked_database, sql_name, sql_text
from kprof.capture.files import damaged, is_own_file
from kprof.on_use import duckdb, pq

# By default 100 MB, which is less than a million launches take.
_MAX_FOOTER_BYTES: Final = (1 << 31) - 1

# Least and largest value of a column, None where it has none, and the number of its nulls.
Range = tuple[int | None, int | None, int]


class Footer(NamedTuple):
    """`columns` are names with DuckDB's types. `ranges` lacks columns without statistics; `adds_up`
    says whether every column has a value for every row; `texts` are short ones."""

    num_rows: int
    num_groups: int
    columns: list[tuple[str, str]]
    ranges: dict[str, Range]
    adds_up: bool
    texts: dict[bytes, bytes]


# A fault in the place of a footer that cannot be read.
Footers = Mapping[Path, Footer | str]

_FOOTERS_SQL: Final = """
    WITH chunks AS (
        SELECT file_name, path_in_schema AS name, row_group_num_rows AS num_rows, num_values,
            stats_null_count AS nulls,
            TRY_CAST(coalesce(stats_min_value, stats_min) AS HUGEINT) AS low,
            TRY_CAST(coalesce(stats_max_value, stats_max) AS HUGEINT) AS high
        FROM parquet_metadata({files})),
    columns AS (
        SELECT file_name, name, sum(num_rows) AS num_rows,
            (min(low), max(high), CAST(coalesce(sum(nulls), 0) AS BIGINT)) AS range,
            bool_and(num_rows >= 0 AND num_values = num_rows) AS is_whole,
            bool_and(num_rows = 0 OR nulls IS NOT NULL
                AND (nulls = num_rows OR low IS NOT NULL AND high IS NOT NULL)) AS is_known
        FROM chunks GROUP BY file_name, name),
    contents AS (
        SELECT file_name, list((name, range)) FILTER (is_known) AS ranges,
            min(num_rows) AS least, max(num_rows) AS most, bool_and(is_whole) AS is_whole
        FROM columns GROUP BY file_name),
    schemas AS (
        SELECT file_name, list((name, duckdb_type)) AS columns
        FROM parquet_schema({files}) WHERE num_children IS NULL GROUP BY file_name),
    texts AS (
        SELECT file_name, list((key, value)) AS texts
        FROM parquet_kv_metadata({files}) WHERE octet_length(value) < 1000 GROUP BY file_name)
    SELECT file_name, num_rows, num_row_groups, columns, coalesce(ranges, []),
        coalesce(is_whole AND least = num_rows AND most = num_rows, num_rows = 0),
        coalesce(texts, [])
    FROM parquet_file_metadata({files}) JOIN schemas USING (file_name)
        LEFT JOIN contents USING (file_name) LEFT JOIN texts USING (file_name)"""


def read_footers(paths: Iterable[Path]) -> Footers:
    """The footers of the plain files among these, all at once, as one takes almost as long."""
    paths = [path for path in paths if is_own_file(path)]
    try:
        rows = _query(paths, _FOOTERS_SQL.format(files=_list(paths))) if paths else []
    except duckdb.Error as error:
        if len(paths) > 1:
            half = len(paths) // 2
            return {**read_footers(paths[:half]), **read_footers(paths[half:])}
        return dict.fromkeys(paths, first_line(error))
    return {
        Path(name): Footer(num_rows, num_groups, columns, dict(ranges), adds_up, dict(texts))
        for name, num_rows, num_groups, columns, ranges, adds_up, texts in rows
    }


def ranges_in_pages(path: Path, names: Sequence[str]) -> dict[str, Range]:
    """The ranges of columns from the values themselves; raises CorruptCaptureError."""
    of = [f"min({sql_name(n)}), max({sql_name(n)}), count(*) - count({sql_name(n)})" for n in names]
    try:
        (row,) = _query([path], f"SELECT {', '.join(of)} FROM read_parquet({_list([path])})")
    except duckdb.Error as error:
        raise damaged(path, first_line(error)) from error
    return {name: row[3 * i : 3 * i + 3] for i, name in enumerate(names)}


def _query(paths: Sequence[Path], query: str) -> list[tuple[Any, ...]]:
    with locked_database(paths) as con:
        return con.execute(query).fetchall()


def first_line(error: Exception) -> str:
    """What an error of DuckDB says, without what it quotes."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _list(paths: Iterable[Path]) -> str:
    return f"[{', '.join(sql_text(str(path)) for path in paths)}]"


def open_parquet(path: Path) -> pq.ParquetFile:
    """A file of events; raises pyarrow's errors and OSError."""
    return pq.ParquetFile(path, thrift_string_size_limit=_MAX_FOOTER_BYTES)


def footer_of(path: Path) -> pq.FileMetaData:
    """Its footer alone."""
    with open_parquet(path) as file:
        return file.metadata
