"""Parquet files whose footer may be large: it names all launches of a rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow.parquet as pq

# By default 100 MB, which is less than a million launches take.
_MAX_FOOTER_BYTES: Final = (1 << 31) - 1


def open_parquet(path: Path) -> pq.ParquetFile:
    """A file of events; raises pyarrow's errors and OSError."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(path, thrift_string_size_limit=_MAX_FOOTER_BYTES)


def footer_of(path: Path) -> pq.FileMetaData:
    """Its footer alone."""
    with open_parquet(path) as file:
        return file.metadata
