"""Events as a table, for pandas, DuckDB and spreadsheets: the columns of the view `events`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from kprof.capture.output import replacing
from kprof.errors import require
from kprof.export.model import ExportSummary

if TYPE_CHECKING:
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
    require("pyarrow", "a table of events")
    import pyarrow.csv
    import pyarrow.parquet

    trace.require_events()
    batches = trace.batches(_QUERY)
    with replacing(path, force=force) as file:
        is_parquet = path.suffix == ".parquet"
        make = pyarrow.parquet.ParquetWriter if is_parquet else pyarrow.csv.CSVWriter
        num_rows = 0
        with make(file, batches.schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                num_rows += batch.num_rows
    return ExportSummary(path, num_rows, 0, 0, path.stat().st_size)
