"""Plain CSV or Parquet, gzipped or not, one row per event.

rank, block, region, start_ns     needed
duration_ns or end_ns             needed, one of them
warp, launch                      -1 and 0 where absent
peer, slot, bytes                 payload fields, where present; -1 or an empty cell: none
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from kprof.capture.checks import footer_fault
from kprof.capture.footers import read_footers
from kprof.errors import ForeignFormatError
from kprof.importers.foreign import CERTAIN, NONE, ForeignEvents, Format, ReadOptions
from kprof.importers.reading import read_bytes
from kprof.importers.sample import Sample
from kprof.on_use import pa, pq

_PARQUET: Final = b"PAR1"
_LONGEST_HEADER: Final = 1 << 16
_MOST_NAMED, _LONGEST_LIST = 20, 400
_NEEDED: Final = ("rank", "block", "region", "start_ns")
_TAKEN: Final = {"rank": "column rank", "block": "column block", "clock": "column start_ns"}
_FIELDS: Final = ("peer", "slot", "bytes")


def _read(files: Sequence[Path], _: ReadOptions) -> ForeignEvents:
    """A CSV or Parquet file with the columns above; the error names what is missing."""
    (file,) = files
    try:
        return _to_events(_read_table(file), file)
    except UnicodeDecodeError as error:
        # Arrow decodes names of columns and cells of Parquet files when they are asked for.
        raise _not_utf8(file, repr(error.object[:80])) from error


def _not_utf8(file: Path, what: str) -> ForeignFormatError:
    return ForeignFormatError(
        f"{file} holds text that is not UTF-8 ({what}); save the file as UTF-8"
    )


def _to_events(table: pa.Table, file: Path) -> ForeignEvents:
    missing = [name for name in _NEEDED if name not in table.column_names]
    if not {"duration_ns", "end_ns"} & set(table.column_names):
        missing.append("duration_ns")
    if missing:
        there = ", ".join(table.column_names[:_MOST_NAMED])[:_LONGEST_LIST]
        raise ForeignFormatError(f"{file} has no column {', '.join(missing)}; it has {there}")
    names, name = np.unique(_names(table, file), return_inverse=True)
    start_ns = _integers(table, "start_ns", file)
    return ForeignEvents(
        rank=_integers(table, "rank", file),
        block=_integers(table, "block", file),
        name=name,
        start_ns=start_ns,
        duration_ns=_durations(table, start_ns, file),
        names=tuple(names.tolist()),
        fields=_present(table, _FIELDS, file, empty=NONE),
        taken=_TAKEN,
        **_present(table, ("warp", "launch"), file),
    )


def _read_table(file: Path) -> pa.Table:
    import pyarrow.csv as csv

    data = read_bytes(file, "a table")
    fault = ""
    try:
        if not data.startswith(_PARQUET):
            return csv.read_csv(pa.BufferReader(data))
        # A few bytes can claim rows for which no memory suffices.
        if not (fault := _footer_fault(file, data)):
            return pq.read_table(pa.BufferReader(data))
    except UnicodeDecodeError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        fault = str(error)
    raise ForeignFormatError(f"cannot read {file} as a table: {fault}")


def _footer_fault(file: Path, data: bytes) -> str:
    """What is wrong with the footer of a Parquet file; empty where nothing is.

    DuckDB reads it: pyarrow ends the process over some damaged columns.
    """
    with contextlib.ExitStack() as stack:
        path = file.resolve()
        if not _begins_with_parquet(path):
            unpacked = stack.enter_context(tempfile.NamedTemporaryFile(suffix=".parquet"))
            unpacked.write(data)
            unpacked.flush()
            path = Path(unpacked.name)
        footer = read_footers([path]).get(path, "it is no plain file")
    if isinstance(footer, str) and "unicode" in footer:
        raise _not_utf8(file, "a name of a column")
    return footer if isinstance(footer, str) else footer_fault(footer, len(data))


def _begins_with_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_PARQUET)) == _PARQUET


def _names(table: pa.Table, file: Path) -> Any:
    names = table["region"].to_pylist()
    # Arrow reads a column of a CSV file as bytes when it is not UTF-8.
    strange = next((name for name in names if isinstance(name, bytes)), None)
    if strange is not None:
        raise ForeignFormatError(f"{file}: region {strange!r} is not UTF-8; save the file as UTF-8")
    # Not one of numpy's strings, which are all as long as the longest.
    return np.array([str(name) for name in names], dtype=object)


def _integers(table: pa.Table, name: str, file: Path, empty: int | None = None) -> Any:
    """A column of whole numbers, shape (n,), with `empty` in empty cells, or without these."""
    try:
        column = table[name].combine_chunks().cast(pa.int64())
        column = column if empty is None else column.fill_null(empty)
    except pa.ArrowException as error:
        raise ForeignFormatError(f"{file}: column {name} is not whole numbers: {error}") from error
    if column.null_count:
        raise ForeignFormatError(
            f"{file}: column {name} has {column.null_count} empty cells; fill them"
        )
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)


def _present(
    table: pa.Table, names: Sequence[str], file: Path, empty: int | None = None
) -> dict[str, Any]:
    known = [name for name in names if name in table.column_names]
    return {name: _integers(table, name, file, empty) for name in known}


def _durations(table: pa.Table, start_ns: Any, file: Path) -> Any:
    if "duration_ns" in table.column_names:
        return _integers(table, "duration_ns", file)
    return _integers(table, "end_ns", file) - start_ns


def _sniff(sample: Sample) -> float:
    if sample.head.startswith(b"PAR1"):
        return CERTAIN
    header = sample.head[:_LONGEST_HEADER].partition(b"\n")[0].decode("utf-8", "replace")
    columns = {name.strip('"\r ') for name in header.split(",")}
    return CERTAIN if columns.issuperset(_NEEDED) else 0.0


FORMAT: Final = Format(_read, _sniff)
