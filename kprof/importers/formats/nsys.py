"""SQLite that `nsys export --type sqlite` writes: kernels by device and stream."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from kprof.capture.files import refuse_special
from kprof.errors import ForeignFormatError
from kprof.importers.collector import Collector, Place
from kprof.importers.foreign import CERTAIN, ForeignEvents, Format, ReadOptions, Taken
from kprof.importers.sample import Sample

_TABLE: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
# A file may declare views that never end.
_STEPS_PER_BYTE: Final = 100
_LEAST_STEPS: Final = 10_000_000


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
        taken=(
            Taken("rank", "each device of each file, in their order", is_guess=True),
            Taken("block", "the stream: these are whole kernels"),
            Taken("clock", "ns of the host"),
        ),
    )


def _rows(path: Path) -> list[tuple[Any, ...]]:
    try:
        refuse_special(path)
        with _opened(path) as database:
            tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
            origin = "0"
            if "TARGET_INFO_SESSION_START_TIME" in tables:
                origin = "(SELECT coalesce(max(utcEpochNs), 0) FROM TARGET_INFO_SESSION_START_TIME)"
            return database.execute(
                f"SELECT start + {origin}, end + {origin}, deviceId, streamId, "
                f"coalesce(s.value, 'kernel') FROM {_TABLE} k "
                "LEFT JOIN StringIds s ON s.id = k.demangledName"
            ).fetchall()
    except (sqlite3.Error, OSError, ValueError) as error:
        raise ForeignFormatError(f"cannot read {path} as SQLite of nsys: {error}") from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The file, which nothing can change and whose schema is not trusted."""
    where = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    most = max(_LEAST_STEPS, _STEPS_PER_BYTE * path.stat().st_size)
    with contextlib.closing(sqlite3.connect(where, uri=True)) as database:
        database.text_factory = lambda data: data.decode("utf-8", "replace")
        database.execute("PRAGMA trusted_schema = OFF")
        # The handler is called after so many steps, and 1 ends the query.
        database.set_progress_handler(lambda: 1, most)
        yield database


def _sniff(sample: Sample) -> float:
    is_sqlite = sample.head.startswith(b"SQLite format 3\0")
    return CERTAIN if is_sqlite and _TABLE.encode() in sample.head else 0.0


FORMAT: Final = Format(
    _read,
    _sniff,
    takes_many=True,
    tool="Nsight Systems: `nsys export --type sqlite` (not gzipped)",
    brings="kernels by device and stream, as context: no blocks",
    lacks="NVTX, the host, copies",
    tested="by a description of its tables",
)
