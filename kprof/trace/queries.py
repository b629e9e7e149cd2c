"""SQL over a trace's views: errors become one sentence, and results have several shapes."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import duckdb

from kprof.capture.footers import first_line
from kprof.errors import CorruptCaptureError, SelectionError, require
from kprof.on_use import pa, pd

if TYPE_CHECKING:
    # Takes longer to load than the others together; queries for other shapes do without.
    from kprof.capture.database import Arrays

# A vector has 2048 rows.
_VECTORS_PER_PIECE: Final = 64
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
        """Run a query over the views, for an Arrow table.

        Raises SelectionError if it does not parse, CorruptCaptureError on bad files.
        """
        require("pyarrow", "an Arrow table")
        with reading():
            table: pa.Table = self._relation(query, parameters).to_arrow_table()
        return table

    def arrays(self, query: str, parameters: Sequence[object] = ()) -> Arrays:
        """Like `sql`, as a numpy array per column; those with NULLs are masked."""
        with reading():
            return cast("Arrays", self._executed(query, parameters).fetchnumpy())

    def pieces(self, query: str) -> Iterator[Arrays]:
        """Like `arrays`, streamed, of a query without NULLs: for more rows than memory holds."""
        with reading():
            self._executed(query)
            while len(piece := self._con.fetch_df_chunk(_VECTORS_PER_PIECE)):
                yield {str(name): piece[name].to_numpy() for name in piece}

    def rows(
        self, query: str, parameters: Sequence[object] = ()
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Like `sql`, as the names of the columns, of which some may be the same, and rows."""
        with reading():
            result = self._executed(query, parameters)
            return [name for name, *_ in result.description or ()], result.fetchall()

    def records(self, query: str, parameters: Sequence[object] = ()) -> list[dict[str, Any]]:
        """Like `sql`, as a dictionary per row."""
        names, rows = self.rows(query, parameters)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def frame(self, query: str, parameters: Sequence[object] = ()) -> pd.DataFrame:
        """Like `sql`, as a pandas DataFrame."""
        with reading():
            return self._executed(query, parameters).df()

    def row(self, query: str, parameters: Sequence[object] = ()) -> tuple[Any, ...]:
        """The values of the only row."""
        # Fetching all ends the query, which a fetch of one would leave open.
        with reading():
            return self._executed(query, parameters).fetchall()[0]

    def batches(self, query: str, rows_per_batch: int = 1 << 17) -> pa.RecordBatchReader:
        """Like `sql`, streamed: for exports of more events than memory holds."""
        require("pyarrow", "an Arrow table")
        with reading():
            return self._relation(query, ()).to_arrow_reader(rows_per_batch)

    def _executed(self, query: str, parameters: Sequence[object] = ()) -> duckdb.DuckDBPyConnection:
        """The connection with the result: a relation would be planned twice."""
        return self._run(lambda: self._con.execute(query, parameters))

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

    def put(self, name: str, table: Arrays | pd.DataFrame) -> None:
        """Keep a small table for later queries; one of that name is replaced."""
        insert(self._con, f"CREATE OR REPLACE TEMP TABLE {name} AS", table)

    def _load_next(self) -> bool:
        return self._views._load_next()


def insert(
    con: duckdb.DuckDBPyConnection, statement: str, table: Arrays | pd.DataFrame | pa.Table
) -> None:
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
        raise MemoryError(first_line(error)) from error
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
            text = f"the query was refused: {first_line(error)}"
            if isinstance(error, duckdb.CatalogException) and "Table with name" in text:
                text += f" The views are {', '.join(VIEWS)}."
            raise SelectionError(text) from error
        raise CorruptCaptureError(
            f"reading the capture failed: {first_line(error)}; record again or restore the file"
        ) from error
