"""Events as a table, for pandas, DuckDB and spreadsheets: the columns of the view `events`."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from kprof.capture.output import replacing
from kprof.export.model import ExportSummary

if TYPE_CHECKING:
    import pyarrow as pa

    from kprof.trace import Trace

SUFFIXES: Final = (".csv", ".csv.gz", ".parquet")
_QUERY: Final = "SELECT * EXCLUDE (event_id, region_id) FROM events ORDER BY rank, event_id"


def is_table(path: Path) -> bool:
    """Whether the name of a file says that it is a table."""
    return path.name.endswith(SUFFIXES)


def write_table(trace: Trace, path: Path, *, force: bool) -> ExportSummary:
    """One row per selected event; a field of the payload that a region lacks is empty.

    `num_slices` of the result counts the rows. Raises OutputExistsError, ExportError.
    """
    trace.require_events()
    batches = trace.batches(_QUERY)
    with replacing(path, force=force) as file:
        num_rows = _write(batches, file, is_parquet=path.suffix == ".parquet")
    return ExportSummary(path, num_rows, 0, 0, path.stat().st_size)


def _write(batches: pa.RecordBatchReader, file: IO[bytes], *, is_parquet: bool) -> int:
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    num_rows = 0
    make = pq.ParquetWriter if is_parquet else csv.CSVWriter
    with make(file, batches.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            num_rows += batch.num_rows
    return num_rows
