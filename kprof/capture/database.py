"""An in-memory DuckDB that reads the files of one capture and reaches nothing else."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kprof.errors import CaptureError
from kprof.on_use import duckdb, np

if TYPE_CHECKING:
    # Columns by name, as DuckDB takes and gives them; those with NULLs are masked.
    Arrays = Mapping[str, np.ndarray]

# DuckDB and Arrow end the process, without a word, where they get no address space.
_LEAST_FREE_BYTES: Final = 3 << 28
_BYTES_PER_THREAD: Final = 128 << 20


def _threads_within_limit() -> int | None:
    """How many threads the address space of this process has room for; None: it has no limit.

    Raises CaptureError where there is too little for one.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    free = limit - used - _LEAST_FREE_BYTES
    if free < _BYTES_PER_THREAD:
        least = used + _LEAST_FREE_BYTES + _BYTES_PER_THREAD
        raise CaptureError(
            f"this process may use {limit / 1e9:.1f} GB of address space (ulimit -v), and reading "
            f"a capture takes {least / 1e9:.1f} GB: raise it, such as with ulimit -v unlimited"
        )
    return min(free // _BYTES_PER_THREAD, os.cpu_count() or 1)


def locked_database(
    files: Sequence[Path], num_threads: int | None = None
) -> duckdb.DuckDBPyConnection:
    """A private database that can open `files` by their paths, and no other file, extension or
    variable.

    No statement can lift this. But SQL could still write to `files` (COPY ... TO), so we run only
    our own SQL, and SELECT statements of the user (Trace.query). Names from a capture go through
    `sql_text` or `sql_name`. Raises CaptureError where `ulimit -v` leaves too little memory.
    """
    most_threads = _threads_within_limit()
    if most_threads is not None:
        num_threads = min(num_threads or most_threads, most_threads)
        if pyarrow := sys.modules.get("pyarrow"):
            pyarrow.set_cpu_count(num_threads)
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
