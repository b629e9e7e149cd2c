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
    (path,) = files
    if path.suffix == ".parquet":
        found = pq.read_table(path).to_pylist()
    else:
        with path.open(newline="") as file:
            found = list(csv.DictReader(file))
    times = [(int(row["start_ns"]), int(row["end_ns"])) for row in found]
    return [
        Row(int(row["rank"]), int(row["block"]), -1, row["region"], start, end - start)
        for row, (start, end) in zip(found, times, strict=True)
    ]
