"""CSV and Parquet."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from foreign_files import Row

COLUMNS = ("rank", "block", "region", "start_ns", "end_ns")
ROWS = [(i % 2, i % 3, f"span {i % 2}", 1000 + 10 * i, 1005 + 11 * i) for i in range(8)]


def make(folder: Path) -> list[Path]:
    path = folder / "events.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *ROWS])
    return [path]


def make_parquet(folder: Path) -> list[Path]:
    path = folder / "events.parquet"
    pq.write_table(pa.table(dict(zip(COLUMNS, zip(*ROWS, strict=True), strict=True))), path)
    return [path]


def read(files: list[Path]) -> list[Row]:
    return [
        Row(rank, block, -1, name, start, end - start) for rank, block, name, start, end in ROWS
    ]
