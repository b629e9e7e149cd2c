"""SQL over a trace's views: errors become one sentence, and results have three shapes."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import duckdb
import pyarrow as pa

from kprof.errors import CorruptCaptureError, SelectionError

if TYPE_CHECKING:
    # Takes longer to load than the others together; queries for Arrow tables do without.
    import pandas as pd

# What SQL sees of a capture.
VIEWS: Final = ("events", "flows", "regions", "launches", "ranks")
_T = TypeVar("_T")


class Queries(ABC):
    """SQL over a connection."""

    _con: duckdb.DuckDBPyConnection

    @abstractmethod
    def _load_next(self) -> bool:
        """Load the next tables that are loaded on first use; False where all are."""

    def sql(self, query: str, parameters: Sequence[object] = ()) -> pa.Table:
        """Run a query over the views.

        Raises SelectionError if it does not parse, CorruptCaptureError on bad files.
        """
        with reading():
            table: pa.Table = self._relation(query, parameters).to_arrow_table()
        return table

    def frame(self, query: str, parameters: Sequence[object] = ()) -> pd.DataFrame:
        """Like `sql`, as a pandas DataFrame."""
        with reading():
            return self._run(lambda: self._con.execute(query, parameters)).df()

    def row(self, query: str, parameters: Sequence[object] = ()) -> tuple[Any, ...]:
        """The values of the only row."""
        # Fetching all ends the query, which a fetch of one would leave open.
        with reading():
            return self._run(lambda: self._con.execute(query, parameters)).fetchall()[0]

    def batches(self, query: str, rows_per_batch: int = 1 << 17) -> pa.RecordBatchReader:
        """Like `sql`, streamed: for exports of more events than memory holds."""
        with reading():
            return self._relation(query, ()).to_arrow_reader(rows_per_batch)

    def _relation(self, query: str, parameters: Sequence[object]) -> duckdb.DuckDBPyRelation:
        relation = self._run(lambda: self._con.sql(query, params=list(parameters) or None))
        if relation is None:
            raise SelectionError("the query gives no rows; write a SELECT over the views")
        return relation

    def _run(self, run: Callable[[], _T]) -> _T:
        """Run a query, and again if DuckDB misses a table that is loaded on first use."""
        while True:
            try:
                return run()
            except duckdb.CatalogException:
                if not self._load_next():
                    raise


class Workspace(Queries):
    """Further tables beside the views of a trace, which stays as it is."""

    def __init__(self, views: Queries) -> None:
        self._views = views
        self._con = views._con.cursor()

    def put(self, name: str, table: pa.Table) -> None:
        """Keep a small table for later queries; one of that name is replaced."""
        insert(self._con, f"CREATE OR REPLACE TEMP TABLE {name} AS", table)

    def has_table(self, name: str) -> bool:
        """Whether a table of this name was made here."""
        query = "SELECT 1 FROM duckdb_tables() WHERE table_name = ? AND temporary"
        return len(self.frame(query, [name])) > 0

    def _load_next(self) -> bool:
        return self._views._load_next()


def insert(con: duckdb.DuckDBPyConnection, statement: str, table: pa.Table) -> None:
    """Run a statement such as `INSERT INTO t`, with the rows of a table."""
    con.register("incoming", table)
    con.execute(f"{statement} SELECT * FROM incoming")
    con.unregister("incoming")


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Turn what DuckDB raises into one sentence.

    Bad bytes may show up late, when results are fetched.
    """
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise MemoryError(_first_line(error)) from error
    except duckdb.Error as error:
        # Damaged pages raise whatever the decoder stumbles over; what a query can be blamed for is
        # known.
        is_the_querys = isinstance(
            error,
            duckdb.ProgrammingError
            | duckdb.DataError
            | duckdb.NotSupportedError
            | duckdb.PermissionException,
        ) and not isinstance(error, duckdb.InvalidInputException)
        if is_the_querys:
            text = f"the query was refused: {_first_line(error)}"
            if isinstance(error, duckdb.CatalogException) and "Table with name" in text:
                text += f" The views are {', '.join(VIEWS)}."
            raise SelectionError(text) from error
        raise CorruptCaptureError(
            f"reading the capture failed: {_first_line(error)}; record again or restore the file"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
