"""Damaged files of other tools against `kprof import`.

    python tests/fuzz/imports.py --minutes 10 --seed 1 --jobs 2      (or --count 10000)

Whatever the damage: a capture that can be read, with as many events as the import said, or one sentence and no capture.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from bytes_damage import KINDS, changed
from harness import Broken

from kprof.capture.directory import Capture, unfinished_of
from kprof.errors import KprofError
from kprof.importers import import_events
from kprof.importers.foreign import ReadOptions

EXTREMES = (
    0,
    -1,
    1,
    1 << 31,
    (1 << 53) + 1,
    1 << 61,
    (1 << 62) - 1,
    (1 << 63) - 1,
    -(1 << 63),
    0x8000_0000,
)


def chrome(random: np.random.Generator, folder: Path) -> list[Path]:
    """A trace as browsers and profilers write it."""
    events: list[dict[str, Any]] = []
    for i in range(int(random.integers(1, 20))):
        begin = {"name": f"span{i % 3}", "pid": i % 2, "tid": i % 4, "ts": 10.5 * i, "cat": "wait"}
        events += random.choice(
            np.array(
                [
                    [begin | {"ph": "X", "dur": 3.25, "args": {"peer": 1, "slot": i}}],
                    [begin | {"ph": "B"}, begin | {"ph": "E", "ts": 10.5 * i + 2}],
                    [begin | {"ph": "i"}],
                    [begin | {"ph": "C", "args": {"value": i}}],
                ],
                dtype=object,
            )
        )
    if random.random() < 0.5:
        extreme(random, events)
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events} if random.random() < 0.7 else events))
    return [path]


def extreme(random: np.random.Generator, events: list[dict[str, Any]]) -> None:
    """One value that is none of its kind."""
    event = events[int(random.integers(len(events)))]
    values = [
        *EXTREMES,
        float("nan"),
        float("inf"),
        1e300,
        "text",
        "\x1b[2J",
        None,
        [],
        {},
        True,
        "9" * 5000,
    ]
    event[list(event)[int(random.integers(len(event)))]] = values[int(random.integers(len(values)))]


def classic(random: np.random.Generator, folder: Path) -> list[Path]:
    """Hand-written buffers, one per rank."""
    files = []
    for rank in range(int(random.integers(1, 4))):
        num_events = int(random.integers(0, 9))
        words = np.zeros(1 + 4 * 8, "<i8")
        words[0] = num_events
        words[1 : 1 + 4 * num_events] = random.integers(0, 5, 4 * num_events) * 100
        if random.random() < 0.4:
            words[int(random.integers(len(words)))] = EXTREMES[int(random.integers(len(EXTREMES)))]
        files.append(folder / f"rank{rank}{random.choice(['.npy', '.bin'])}")
        np.save(files[-1], words) if files[-1].suffix == ".npy" else words.tofile(files[-1])
    return files


def table(random: np.random.Generator, folder: Path) -> list[Path]:
    """A table with a row for each event."""
    number = int(random.integers(1, 12))
    columns: dict[str, list[Any]] = {
        "rank": (np.arange(number) % 2).tolist(),
        "block": (np.arange(number) % 4).tolist(),
        "region": [f"span{i % 3}" for i in range(number)],
        "start_ns": (np.arange(number) * 1000).tolist(),
        "duration_ns": [250] * number,
        "peer": [1] * number,
    }
    if random.random() < 0.5:
        column = columns[list(columns)[int(random.integers(len(columns)))]]
        if isinstance(column[0], int):
            column[int(random.integers(number))] = EXTREMES[int(random.integers(len(EXTREMES)))]
    path = folder / f"events{random.choice(['.csv', '.parquet'])}"
    made = pa.table(columns)
    csv.write_csv(made, path) if path.suffix == ".csv" else pq.write_table(made, path)
    return [path]


FORMATS = {"chrome": chrome, "classic": classic, "table": table}


def case(seed: int, number: int, folder: Path) -> str:
    """Import one damaged file."""
    random = np.random.default_rng([seed, number])
    name = list(FORMATS)[number % len(FORMATS)]
    files = FORMATS[name](random, folder)
    if random.random() < 0.6:
        path = files[int(random.integers(len(files)))]
        kind = KINDS[int(random.integers(KINDS.index("gone")))]
        path.write_bytes(changed(random, path.read_bytes(), kind))
    output = folder / "run.kprof"
    options = (
        ReadOptions(tick_ns=float(random.choice([1.0, 1e-9, 1e9])))
        if random.random() < 0.2
        else None
    )
    try:
        summary = import_events(name, files, output, options)
    except KprofError as error:
        if output.exists() or unfinished_of(output).exists():
            raise Broken(f"an output in spite of the error: {error}") from error
        return f"{name}: refused"
    capture = Capture.open(output)
    found = sum(
        pq.read_table(capture.events_path(info.rank)).num_rows for info in capture.manifest.ranks
    )
    if found != summary.num_events:
        raise Broken(f"{found} events of {summary.num_events}")
    return f"{name}: imported"


if __name__ == "__main__":
    sys.exit(harness.main(case, "imports", "tests/fuzz/imports.py"))
