"""An in-memory DuckDB that reads the files of one capture and reaches nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


def locked_database(
    files: Sequence[Path], num_threads: int | None = None
) -> duckdb.DuckDBPyConnection:
    """A private database that can open `files` by their paths, and no other file, extension or
    variable.

    No statement can lift this. But SQL could still write to `files` (COPY ... TO), so we run only
    our own SQL, and SELECT statements of the user (Trace.query). Names from a capture go through
    `sql_text` or `sql_name`.
    """
    import duckdb

    con = duckdb.connect(":memory:")
    con.execute("SET preserve_insertion_order = false")
    con.execute("SET enable_progress_bar = false")
    # Else every query reads the footers of all ranks' files again.
    con.execute("SET GLOBAL parquet_metadata_cache = true")
    # Of its own accord this setting is one connection's, and cursors are connections.
    con.execute("SET GLOBAL python_enable_replacements = false")
    if num_threads is not None:
        con.execute(f"SET threads = {int(num_threads)}")
    if files:
        con.execute(f"SET allowed_paths = [{', '.join(sql_text(str(file)) for file in files)}]")
    con.execute("SET enable_external_access = false")
    con.execute("SET lock_configuration = true")
    return con


def sql_text(text: str) -> str:
    """A SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def sql_name(name: str) -> str:
    """A SQL identifier, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'
