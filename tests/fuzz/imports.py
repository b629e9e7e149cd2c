"""Damaged files of other tools against `kprof import`.

    python tests/fuzz/imports.py --minutes 10 --seed 1 --jobs 2      (or --count 10000)

Whatever the damage: events that can be written, or one sentence; in 2 s of processor time and 1 GB. No pickle is loaded. One case in
100 makes a capture, with as many events as the import said. In one of 20 a second reader (`tests/support/foreign_files`) counts the
rows that it sees: no more than the importer has found, unless that has counted what is lost.
"""

from __future__ import annotations

import gzip
import json
import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import harness
import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from bytes_damage import KINDS, changed
from harness import Broken

import foreign_files
from kprof.capture.directory import Capture
from kprof.capture.names import unfinished_of
from kprof.errors import KprofError
from kprof.importers import format_of, import_events, own_names, read_events, recognise
from kprof.importers.foreign import ImportSummary, ReadOptions
from kprof.importers.writing import prepare

MOST_CPU_S: Final = 2.0
MOST_KB: Final = 1_000_000
# Writing takes longer than reading, and has no more ways.
WRITTEN, READ_TWICE = 100, 20
# Real files, of thousands of events: most of their cases are of a small file instead.
LARGE, SELDOM = ("iket make_real", "proton make_real", "proton_chrome make"), 20
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


def made(module: ModuleType, maker: str) -> Make:
    """One of the small files that the unit tests import."""

    def make(_: np.random.Generator, folder: Path) -> list[Path]:
        files: list[Path] = getattr(module, maker)(folder)
        return files

    return make


Make = Callable[[np.random.Generator, Path], list[Path]]
# Every format that kprof has, each with all its files; the first three with random ones, too.
FORMATS: dict[str, tuple[str, Make]] = {
    "chrome, random": ("chrome", chrome),
    "classic, random": ("classic", classic),
    "table, random": ("table", table),
} | {
    f"{name} {maker}": (name, made(module, maker))
    for name, module in foreign_files.modules().items()
    for maker in dir(module)
    if maker == "make" or maker.startswith("make_")
}


def watch_pickles() -> None:
    """Nothing in a file is ever unpickled, whatever it claims to be."""

    def hear(event: str, _: object) -> None:
        if event == "pickle.find_class" and is_reading[0]:
            raise Broken("a pickle was loaded")

    sys.addaudithook(hear)


# How each format of kprof is read: without the packages that are looked through for plug-ins.
OWN = {name: format_of(name) for name in own_names()}
# By the folder of a maker: its files for the importer, and each one as it was made.
kept: dict[Path, tuple[list[Path], list[tuple[Path, bytes]]]] = {}
are_changed: set[Path] = set()
is_reading = [False]
watch_pickles()


def case(seed: int, number: int, folder: Path) -> str:
    """Read one damaged file; of one case in WRITTEN, a capture is made as well."""
    random = np.random.default_rng([seed, number])
    what = list(FORMATS)[number % len(FORMATS)]
    if what in LARGE and random.random() > 1 / SELDOM:
        what = f"{FORMATS[what][0]} make" if what.endswith("make_real") else "chrome make"
    name, _ = FORMATS[what]
    files = placed(random, what, folder)
    options = ReadOptions(tick_ns=float(random.choice([1.0, 0.5, 1e-9, 1e9])))
    kind = name if random.random() < 0.75 else None
    is_written, is_read_twice = random.random() < 1 / WRITTEN, random.random() < 1 / READ_TWICE
    begin_s, before_kb = time.process_time(), peak_kb()
    is_reading[0] = True
    try:
        # As users do it, and sometimes with the name that they give.
        kind = kind or recognise(files, OWN)
        if is_written:
            return f"{name}: {imported(kind, files, folder / 'run.kprof', options)}"
        events = read_events(kind, files, options)
        prepare(events, files[0].name)
    except KprofError:
        return f"{name}: refused"
    finally:
        is_reading[0] = False
        check_cost(time.process_time() - begin_s, before_kb)
    num_lost = sum(events.num_dropped.values()) + sum(events.left_out.values())
    # What is counted may be a whole block with its events.
    others = num_rows(what, files) if is_read_twice and kind == name and not num_lost else 0
    if len(events) < others:
        raise Broken(f"{len(events)} events of {others}, and none is counted as lost")
    return f"{name}: {'read, with losses that are counted' if num_lost else 'read'}"


def imported(kind: str, files: list[Path], output: Path, options: ReadOptions) -> str:
    """Make a capture, and read it."""
    shutil.rmtree(output, ignore_errors=True)
    try:
        return checked(output, import_events(kind, files, output, options))
    except KprofError as error:
        if output.exists() or unfinished_of(output).exists():
            raise Broken(f"an output in spite of the error: {error}") from error
        raise


def num_rows(what: str, files: list[Path]) -> int:
    """How many rows the second reader of a format sees; 0 where there is none, or where it fails."""
    module = foreign_files.modules().get(FORMATS[what][0])
    # A second reader loads pickles: only of what the tests have made.
    if module is None or "random" in what or "pickle" in what:
        return 0
    try:
        return len(module.read(files))
    except Exception:
        # It is for sound files, and trips over most of the others.
        return 0


def placed(random: np.random.Generator, what: str, folder: Path) -> list[Path]:
    """The files of a case, one of them damaged. Those of a maker stay, and only that one is written."""
    place = folder / f"{list(FORMATS).index(what)}"
    if "random" in what or not place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        files = FORMATS[what][1](random, place)
        inner = sorted(each for each in place.rglob("*") if each.is_file())
        kept[place] = (files, [(each, each.read_bytes()) for each in inner])
    files, contents = kept[place]
    damaged = int(random.integers(len(contents)))
    kind = KINDS[int(random.integers(KINDS.index("gone")))] if random.random() < 0.9 else ""
    for number, (path, data) in enumerate(contents):
        if number == damaged and kind:
            path.write_bytes(packed(random, data, kind))
            are_changed.add(path)
        elif path in are_changed:
            path.write_bytes(data)
            are_changed.remove(path)
    return files


def packed(random: np.random.Generator, data: bytes, kind: str) -> bytes:
    """Damage inside of what is packed, or of the packed bytes."""
    if data[:2] == b"\x1f\x8b" and random.random() < 0.8:
        return gzip.compress(changed(random, gzip.decompress(data), kind), 1)
    return changed(random, data, kind)


def check_cost(cpu_s: float, before_kb: int) -> None:
    """2 s of processor time, and 1 GB unless the process had more before."""
    if cpu_s > MOST_CPU_S or peak_kb() > max(MOST_KB, before_kb):
        raise Broken(f"it takes {cpu_s:.1f} s of processor time and {peak_kb() / 1e6:.2f} GB")


def peak_kb() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def checked(output: Path, summary: ImportSummary) -> str:
    """Whether the capture has as many events as the import said, and the losses that it counted."""
    capture = Capture.open(output)
    ranks = capture.manifest.ranks
    found = sum(pq.read_table(capture.events_path(info.rank)).num_rows for info in ranks)
    if found != summary.num_events:
        raise Broken(f"{found} events of {summary.num_events}")
    # A rank of which nothing is left is not in the capture.
    if sum(info.counts.dropped for info in ranks) > summary.num_lost:
        raise Broken("the capture has more losses than were said")
    has_losses = summary.num_lost or summary.left_out
    return "imported, with losses that are counted" if has_losses else "imported"


if __name__ == "__main__":
    sys.exit(harness.main(case, "imports", "tests/fuzz/imports.py", has_files=False))
