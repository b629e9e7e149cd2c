"""What must hold in a capture before anything is computed from it, beyond the ranges in
manifest.py.

A capture may come from anyone, so nothing here assumes that kprof wrote it. The time that a check
takes depends on the size of the files, never on the numbers in them.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kprof.capture import footers
from kprof.capture.files import check_own_file, damaged
from kprof.capture.manifest import Alignment, Manifest, Overhead
from kprof.errors import CorruptCaptureError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# A view has a column for each name.
MAX_FIELD_NAMES: Final = 256
# The number of an event has the rank in the bits above these.
MAX_ROWS_PER_RANK: Final = 1 << 40
# A few bytes can claim billions of equal rows; millions of them in a common Parquet file have 24 a
# byte. Most recordings have 0.1 to 0.3; one kernel that ran in a loop on an H200, whose clock steps
# by 32 ns, had 3.4, and one without any jitter would have 6.4.
MAX_ROWS_PER_BYTE: Final = 16
_ALWAYS_ALLOWED_ROWS: Final = 1 << 16
# Python looks at each row group. Ours have up to a million rows, fewer in a run that is flushed
# often.
_MAX_SMALL_GROUPS: Final = 4096
_ROWS_OF_A_LARGE_GROUP: Final = 1 << 10

Bounds = dict[str, tuple[int, int]]
_INT32: Final = (0, (1 << 31) - 1)
# Columns of a rank's Parquet file with their types and bounds. Times are rank-local; `warp` is -1
# for a track of the whole block. The sum of a start and a duration fits 64 bits with room for an
# offset.
EVENT_COLUMNS: Final = {
    "rank": ("int32", _INT32),
    "launch": ("int32", _INT32),
    "block": ("int32", _INT32),
    "warp": ("int16", (-1, (1 << 15) - 1)),
    "region": ("uint16", (0, (1 << 16) - 1)),
    "flags": ("uint8", (0, (1 << 8) - 1)),
    "start_ns": ("int64", (-(1 << 61), 1 << 62)),
    "duration_ns": ("int64", (0, 1 << 53)),
    "payload": ("uint32", (0, (1 << 32) - 1)),
    "hw_id": ("uint32", (0, (1 << 32) - 1)),
}
EVENT_BOUNDS: Final[Bounds] = {name: ends for name, (_, ends) in EVENT_COLUMNS.items()}


def check_manifest(path: Path, manifest: Manifest) -> None:
    """Refuse a manifest that contradicts itself; raises CorruptCaptureError."""
    fault = next(_faults(manifest), None)
    if fault is not None:
        raise damaged(path, fault)


def _faults(manifest: Manifest) -> Iterator[str]:
    if not manifest.ranks:
        yield "it lists no rank"
    yield from _outsiders(manifest)
    yield from (f"it lists rank {rank} twice" for rank in _repeated(i.rank for i in manifest.ranks))
    for info in manifest.ranks:
        for launch in _repeated(launch.launch for launch in info.launches):
            yield f"it lists launch {launch} of rank {info.rank} twice"
    names = {f.name for info in manifest.ranks for r in info.regions.regions for f in r.fields}
    if len(names) > MAX_FIELD_NAMES:
        yield f"its payload fields have {len(names):,} names, more than {MAX_FIELD_NAMES}"
    for alignment in _alignments(manifest):
        yield from _alignment_faults(alignment)
    yield from _overhead_faults(manifest.overhead) if manifest.overhead is not None else ()


def _outsiders(manifest: Manifest) -> Iterator[str]:
    """Every rank that is named must exist: later code indexes tables with these numbers."""
    named = [*(info.rank for info in manifest.ranks), *manifest.missing_ranks]
    for alignment in _alignments(manifest):
        named.append(alignment.reference_rank)
        named += [entry.rank for entry in alignment.ranks]
        named += [rank for pair in alignment.pairs for rank in (pair.a, pair.b)]
    for rank in named:
        if not 0 <= rank < manifest.world_size:
            yield f"it names rank {rank} in a run of {manifest.world_size}"


def _alignments(manifest: Manifest) -> list[Alignment]:
    return [each for each in (manifest.alignment, manifest.partial_alignment) if each is not None]


def _alignment_faults(alignment: Alignment) -> Iterator[str]:
    for rank in _repeated(entry.rank for entry in alignment.ranks):
        yield f"it aligns rank {rank} twice"
    for entry in alignment.ranks:
        starts = [segment.from_ns for segment in entry.segments]
        if not starts:
            yield f"the clock of rank {entry.rank} has no segment"
        if any(later <= first for first, later in itertools.pairwise(starts)):
            yield f"the clock segments of rank {entry.rank} are not in order"


def _overhead_faults(overhead: Overhead) -> Iterator[str]:
    """Percentages divide by the time with recording off, so that must not be 0."""
    shapes = {(len(entry.off_us), len(entry.on_us)) for entry in overhead.kernels}
    if len(shapes) != 1 or 0 in next(iter(shapes)):
        yield "its overhead does not have the same number of runs for every kernel"
    elif not sum(entry.num_launches * sum(entry.off_us) for entry in overhead.kernels) > 0:
        yield "its overhead compares with runs that took no time"


def _repeated(numbers: Iterable[int]) -> Iterator[int]:
    return (number for number, count in Counter(numbers).items() if count > 1)


def check_events(path: Path, rank: int, schema: pa.Schema) -> int:
    """The number of events in a rank's file; raises CorruptCaptureError for what cannot be one.

    Reads the footer only, unless it does not say what the columns hold.
    """
    if not os.path.lexists(path):
        raise CorruptCaptureError(
            f"{path} is missing although the manifest lists it; restore it or record again"
        )
    metadata = read_footer(path)
    if not metadata.schema.to_arrow_schema().equals(schema):
        raise CorruptCaptureError(f"{path} does not have the columns of a capture; record again")
    bounds = EVENT_BOUNDS | {"rank": (rank, rank)}
    fault = next(column_faults(path, metadata, bounds, may_be_null=False), "")
    if fault:
        raise damaged(path, fault)
    return int(metadata.num_rows)


def are_events(table: pa.Table, schema: pa.Schema) -> bool:
    """Whether a table has the columns of events, and only values that readers take."""
    import pyarrow.compute as pc

    if not table.schema.equals(schema):
        return False
    for name, (_, (least, most)) in EVENT_COLUMNS.items():
        ends = pc.min_max(table[name], skip_nulls=False)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        if len(table) and (low is None or low < least or high > most):
            return False
    return True


def read_footer(path: Path) -> pq.FileMetaData:
    """The footer of a Parquet file, once its schema can be read; raises CorruptCaptureError."""
    import pyarrow as pa

    size_bytes = check_own_file(path)
    try:
        metadata = footers.footer_of(path)
        metadata.schema.to_arrow_schema()
        fault = footer_fault(metadata, size_bytes)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise damaged(path, _first_line(error)) from error
    if fault:
        raise damaged(path, fault)
    return metadata


def footer_fault(metadata: pq.FileMetaData, size_bytes: int) -> str:
    """Why a footer cannot belong to a recording; empty where it can."""
    num_rows, num_groups = metadata.num_rows, metadata.num_row_groups
    if num_groups > _MAX_SMALL_GROUPS + num_rows // _ROWS_OF_A_LARGE_GROUP:
        return f"its {num_rows:,} rows are in {num_groups:,} pieces, which no recording does"
    groups = [metadata.row_group(i) for i in range(num_groups)]
    if num_rows > MAX_ROWS_PER_RANK:
        return f"it claims {num_rows:,} rows, and kprof reads at most {MAX_ROWS_PER_RANK:,}"
    if num_rows > max(_ALWAYS_ALLOWED_ROWS, MAX_ROWS_PER_BYTE * size_bytes):
        return f"it claims {num_rows:,} rows in {size_bytes:,} bytes, which no recording does"
    if num_rows != sum(group.num_rows for group in groups) or any(
        group.num_rows < 0 for group in groups
    ):
        return "its row groups do not add up to its rows"
    if any(
        group.column(i).num_values != group.num_rows
        for group in groups
        for i in range(group.num_columns)
    ):
        return "its columns differ in length"
    return ""


def column_faults(
    path: Path, metadata: pq.FileMetaData, bounds: Bounds, *, may_be_null: bool
) -> Iterator[str]:
    """Columns with nulls or with values out of `bounds`, by column; raises CorruptCaptureError."""
    names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    ranges = _ranges_in_footer(metadata, names, bounds) or _ranges_in_pages(path, bounds)
    for name, (lowest, highest, num_nulls) in ranges.items():
        least, most = bounds[name]
        strange = lowest if lowest < least else highest
        if num_nulls and not may_be_null:
            yield f"{name} is missing in {num_nulls:,} of its rows"
        elif not least <= strange <= most:
            yield f"{name} {strange} is outside {least} to {most}"


Ranges = dict[str, tuple[int, int, int]]


def _ranges_in_footer(metadata: pq.FileMetaData, names: list[str], bounds: Bounds) -> Ranges | None:
    """Minimum, maximum and number of nulls by column, from the file's statistics.

    None without them.
    """
    found: dict[str, list[tuple[int, int, int]]] = {}
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        for column, name in enumerate(names):
            if name not in bounds or group.num_rows == 0:
                continue
            entry = _range_of(group.column(column).statistics, group.num_rows)
            if entry is None:
                return None
            found.setdefault(name, []).append(entry)
    return {name: _united(entries) for name, entries in found.items()}


def _range_of(statistics: Any, num_rows: int) -> tuple[int, int, int] | None:
    if statistics is None or not statistics.has_null_count:
        return None
    if statistics.null_count == num_rows:
        return 0, 0, num_rows
    if not statistics.has_min_max:
        return None
    return statistics.min, statistics.max, statistics.null_count


def _united(entries: list[tuple[int, int, int]]) -> tuple[int, int, int]:
    lowest, highest, num_nulls = zip(*entries, strict=True)
    return min(lowest), max(highest), sum(num_nulls)


def _ranges_in_pages(path: Path, bounds: Bounds) -> Ranges:
    """The same from the values themselves, for files without statistics."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: dict[str, list[tuple[int, int, int]]] = {}
    try:
        with footers.open_parquet(path) as file:
            for batch in file.iter_batches(columns=list(bounds)):
                for name in bounds:
                    column = batch.column(name)
                    both = pc.min_max(column)
                    low, high = both["min"].as_py(), both["max"].as_py()
                    found.setdefault(name, []).append((low or 0, high or 0, column.null_count))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged(path, _first_line(error)) from error
    return {name: _united(entries) for name, entries in found.items()}


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
