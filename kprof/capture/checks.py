"""What must hold in a capture before anything is computed from it, beyond the ranges in
manifest.py.

A capture may come from anyone, so nothing here assumes that kprof wrote it. The time that a check
takes depends on the size of the files, never on the numbers in them.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from kprof.capture.files import check_own_file, damaged
from kprof.capture.footers import Footer, Footers, ranges_in_pages
from kprof.capture.manifest import Alignment, Manifest, Overhead
from kprof.errors import CorruptCaptureError
from kprof.on_use import duckdb, pa, pc

# A view has a column for each name.
MAX_FIELD_NAMES: Final = 256
# The number of an event has the rank in the bits above these.
MAX_ROWS_PER_RANK: Final = 1 << 40
# A few bytes can claim billions of equal rows; millions of them in a common Parquet file have 24 a
# byte. Most recordings have 0.1 to 0.3; one kernel that ran in a loop on an H200, whose clock steps
# by 32 ns, had 3.4, and one without any jitter would have 6.4.
MAX_ROWS_PER_BYTE: Final = 16
_ALWAYS_ALLOWED_ROWS: Final = 1 << 16
# Each row group takes its time. Ours have up to a million rows, fewer in a run that is flushed
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


def check_events(path: Path, rank: int, footers: Footers) -> int:
    """The number of events in a rank's file; raises CorruptCaptureError for what cannot be one.

    Looks at the footer only, unless it does not say what the columns hold.
    """
    if not os.path.lexists(path):
        raise CorruptCaptureError(
            f"{path} is missing although the manifest lists it; restore it or record again"
        )
    footer = read_footer(path, footers)
    if not has_columns(footer, EVENT_COLUMNS):
        raise CorruptCaptureError(f"{path} does not have the columns of a capture; record again")
    bounds = EVENT_BOUNDS | {"rank": (rank, rank)}
    fault = next(column_faults(path, footer, bounds, may_be_null=False), "")
    if fault:
        raise damaged(path, fault)
    return footer.num_rows


def are_events(table: pa.Table, schema: pa.Schema) -> bool:
    """Whether a table has the columns of events, and only values that readers take."""
    if not table.schema.equals(schema):
        return False
    for name, (_, (least, most)) in EVENT_COLUMNS.items():
        ends = pc.min_max(table[name], skip_nulls=False)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        if len(table) and (low is None or low < least or high > most):
            return False
    return True


def read_footer(path: Path, footers: Footers) -> Footer:
    """The footer of a file, which can be one of a capture; raises CorruptCaptureError."""
    size_bytes = check_own_file(path)
    footer = footers.get(path, "it cannot be read")
    if isinstance(footer, str):
        raise damaged(path, footer)
    if fault := footer_fault(footer, size_bytes):
        raise damaged(path, fault)
    return footer


def has_columns(footer: Footer, columns: Mapping[str, tuple[str, object]]) -> bool:
    """Whether a file has these columns, by name and type, and no others."""
    kinds = {name: str(duckdb.sqltype(kind)) for name, (kind, _) in columns.items()}
    return sorted(footer.columns) == sorted(kinds.items())


def footer_fault(footer: Footer, size_bytes: int) -> str:
    """Why a footer cannot belong to a recording; empty where it can."""
    num_rows, num_groups = footer.num_rows, footer.num_groups
    if num_groups > _MAX_SMALL_GROUPS + num_rows // _ROWS_OF_A_LARGE_GROUP:
        return f"its {num_rows:,} rows are in {num_groups:,} pieces, which no recording does"
    if num_rows > MAX_ROWS_PER_RANK:
        return f"it claims {num_rows:,} rows, and kprof reads at most {MAX_ROWS_PER_RANK:,}"
    if num_rows > max(_ALWAYS_ALLOWED_ROWS, MAX_ROWS_PER_BYTE * size_bytes):
        return f"it claims {num_rows:,} rows in {size_bytes:,} bytes, which no recording does"
    if not footer.adds_up:
        return "its row groups do not add up to its rows"
    return ""


def column_faults(
    path: Path, footer: Footer, bounds: Bounds, *, may_be_null: bool
) -> Iterator[str]:
    """Columns with nulls or with values out of `bounds`, by column; raises CorruptCaptureError."""
    known = {name: footer.ranges[name] for name in bounds if name in footer.ranges}
    ranges = known if len(known) == len(bounds) else ranges_in_pages(path, list(bounds))
    for name, (lowest, highest, num_nulls) in ranges.items():
        least, most = bounds[name]
        if num_nulls and not may_be_null:
            yield f"{name} is missing in {num_nulls:,} of its rows"
        elif lowest is not None and highest is not None:
            strange = lowest if lowest < least else highest
            if not least <= strange <= most:
                yield f"{name} {strange} is outside {least} to {most}"
