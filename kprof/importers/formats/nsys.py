"""SQLite that `nsys export --type sqlite` writes: kernels by device and stream."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from kprof.capture.files import refuse_special
from kprof.errors import ForeignFormatError
from kprof.importers.collector import Collector, Place
from kprof.importers.foreign import ForeignEvents, Format, Guess, ReadOptions
from kprof.importers.sample import Sample

_TABLE: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_NAMES: Final = "StringIds"
_ORIGIN: Final = "TARGET_INFO_SESSION_START_TIME"
# Where a damaged file goes around in circles.
_STEPS_PER_BYTE: Final = 100
_LEAST_STEPS: Final = 10_000_000
# Any number of rows may share the same pages of a file.
_MOST_BYTES_OF_VALUE: Final = 1_000_000


def _read(files: Sequence[Path], _: ReadOptions) -> ForeignEvents:
    """One file of all devices, or one per rank."""
    found = Collector()
    ranks: dict[tuple[int, Any], int] = {}
    for number, path in enumerate(files):
        for start, end, device, stream, name in _rows(path):
            if not all(isinstance(value, int) for value in (start, end, device, stream)):
                found.left_out["kernels without numbers"] += 1
                continue
            rank = ranks.setdefault((number, device), len(ranks))
            found.span(Place(rank, stream), str(name), start, end - start)
    return found.events(
        files[0],
        kernel="streams",
        taken={
            "rank": Guess("each device of each file, in their order"),
            "block": "the stream: these are whole kernels",
            "clock": "ns of the host",
        },
    )


def _rows(path: Path) -> Iterator[tuple[Any, ...]]:
    """Start and end in ns, device, stream and name of every kernel."""
    try:
        refuse_special(path)
        with _opened(path) as database:
            origin = 0
            if _ORIGIN.lower() in _check_tables(database):
                ((latest,),) = database.execute(f"SELECT max(utcEpochNs) FROM {_ORIGIN}")
                origin = latest if isinstance(latest, int) else 0
            # One text for all kernels of a name, however long it is.
            names = dict(
                database.execute(
                    f"SELECT id, value FROM {_NAMES} "
                    f"WHERE id IN (SELECT demangledName FROM {_TABLE})"
                )
            )
            rows = database.execute(
                f"SELECT start, end, deviceId, streamId, demangledName FROM {_TABLE}"
            )
            for start, end, device, stream, name in rows:
                are_numbers = isinstance(start, int) and isinstance(end, int)
                times = (start + origin, end + origin) if are_numbers else (None, None)
                yield (*times, device, stream, names.get(name) or "kernel")
    except (sqlite3.Error, OSError, ValueError, MemoryError) as error:
        raise ForeignFormatError(f"cannot read {path} as SQLite of nsys: {error}") from error


def _check_tables(database: sqlite3.Connection) -> set[str]:
    """Which of our tables the file has, in lower case. Raises ValueError for what is computed when
    it is read: a few bytes may compute gigabytes."""
    schema = database.execute("SELECT lower(name), type, rootpage, sql FROM sqlite_master")
    wanted = {name.lower() for name in (_TABLE, _NAMES, _ORIGIN)}
    found = {name: (kind, page, sql) for name, kind, page, sql in schema if name in wanted}
    for name, (kind, page, sql) in found.items():
        columns = database.execute(f"SELECT 1 FROM pragma_table_xinfo('{name}') WHERE hidden")
        is_stored = kind == "table" and page and str(sql).startswith("CREATE TABLE")
        if not is_stored or columns.fetchall():
            raise ValueError(f"{name} is a view, a virtual table, or has generated columns")
    return set(found)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The file, which nothing can change and whose schema is not trusted."""
    where = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    most = max(_LEAST_STEPS, _STEPS_PER_BYTE * path.stat().st_size)
    with contextlib.closing(sqlite3.connect(where, uri=True)) as database:
        if sys.version_info >= (3, 11):
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES_OF_VALUE)
        database.text_factory = lambda data: data.decode("utf-8", "replace")
        database.execute("PRAGMA trusted_schema = OFF")
        # The handler is called after so many steps, and 1 ends the query.
        database.set_progress_handler(lambda: 1, most)
        yield database


def _sniff(sample: Sample) -> bool:
    is_sqlite = sample.head.startswith(b"SQLite format 3\0")
    return is_sqlite and _TABLE.encode() in sample.head


FORMAT: Final = Format(_read, _sniff, takes_many=True)
