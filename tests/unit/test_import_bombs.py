"""Files that cost far more than they hold, or hold numbers that nothing can hold: one sentence each."""

from __future__ import annotations

import contextlib
import json
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from foreign_files import att, nsys, torch_profiler
from kprof.errors import ForeignFormatError
from kprof.importers import import_events

HUGE = 10**400


def _att(folder: Path) -> tuple[str, list[Path]]:
    (made,) = att.make(folder)
    path = made / "occupancy.json"
    occupancy = json.loads(path.read_text())
    events = next(value for name, value in occupancy.items() if name.isdecimal())
    events[0][0] = HUGE
    path.write_text(json.dumps(occupancy))
    return "att", [made]


def _torch(folder: Path) -> tuple[str, list[Path]]:
    path = torch_profiler.make(folder)[0]
    path.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a", "ts": 1e307, "dur": 1e307}]}'
    )
    return "torch_profiler", [path]


def _nsys(statements: str) -> Callable[[Path], tuple[str, list[Path]]]:
    def make(folder: Path) -> tuple[str, list[Path]]:
        (path,) = nsys.make(folder)
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.executescript(statements)
        return "nsys", [path]

    return make


def _table(**columns: object) -> Callable[[Path], tuple[str, list[Path]]]:
    def make(folder: Path) -> tuple[str, list[Path]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = folder / "events.parquet"
        pq.write_table(pa.table(columns), path)
        return "table", [path]

    return make


EQUAL_ROWS = dict.fromkeys(("rank", "block", "region", "start_ns", "duration_ns"), [0] * 2_000_000)
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COLUMNS = "1 AS start, 2 AS end, 0 AS deviceId, 7 AS streamId, 1 AS demangledName"
VIEW = f"DROP TABLE {KERNELS}; CREATE VIEW {KERNELS} AS SELECT {COLUMNS}"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_att, "too large"),
        (_table(**EQUAL_ROWS), "claims 2,000,000 rows in"),
        (_table(**{f"c{i}": [1] for i in range(5000)}), "has no column .{1,500}$"),
        (_torch, "too large"),
        (_nsys(VIEW), "is a view"),
        (_nsys(VIEW.replace(KERNELS, KERNELS.lower())), "is a view"),
        (
            _nsys(
                "DROP TABLE StringIds; CREATE VIEW StringIds AS SELECT 1 AS id, zeroblob(900000000) AS value"
            ),
            "is a view",
        ),
        (
            _nsys(
                "DROP TABLE StringIds; CREATE TABLE StringIds (id, "
                "value AS (hex(zeroblob(400000000)))); INSERT INTO StringIds VALUES (1)"
            ),
            "generated columns",
        ),
        (
            _nsys(
                "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = "
                f"'CREATE VIEW {KERNELS} AS SELECT {COLUMNS}' WHERE name = '{KERNELS}'"
            ),
            "malformed|is a view",
        ),
        pytest.param(
            _nsys("UPDATE StringIds SET value = hex(zeroblob(2000000))"),
            "too big",
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="has no limit to set"),
        ),
    ],
)
def test_a_file_that_costs_more_than_it_holds_is_one_sentence(
    tmp_path: Path, make: Callable[[Path], tuple[str, list[Path]]], said: str
) -> None:
    kind, files = make(tmp_path)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ForeignFormatError, match=said):
        import_events(kind, files, tmp_path / "run.kprof")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before_kb + 300_000
    assert not (tmp_path / "run.kprof").exists()


def test_a_name_is_kept_once_for_all_its_kernels(tmp_path: Path) -> None:
    """A join gave each of 20,000 kernels its own copy of a name of 900 kB: 18 GB."""
    (path,) = nsys.make(tmp_path)
    rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(
            f"UPDATE StringIds SET value = hex(zeroblob(450000)) WHERE id = 1; {rows} "
            f"INSERT INTO {KERNELS} SELECT 1000 * i, 1000 * i + 500, 0, 7, 1, 1, 1, 4, 128 FROM n"
        )
    ended = _imported(path, "RLIMIT_AS", 4 << 30)
    assert ended.returncode in (0, 1), ended.stderr[-2000:]
    assert "Traceback" not in ended.stderr


def test_one_long_name_does_not_make_all_names_long(tmp_path: Path) -> None:
    """Numpy's strings are all as long as the longest: these took 160 GB."""
    path = tmp_path / "events.csv"
    rows = "".join(f"0,0,a,{i},1\n" for i in range(20_000))
    path.write_text(f"rank,block,region,start_ns,duration_ns\n{rows}0,0,{'b' * 500_000},0,1\n")
    done = _imported(path, "RLIMIT_AS", 6 << 30)
    assert "Unable to allocate" not in done.stderr + done.stdout
    assert "MemoryError" not in done.stderr + done.stdout


def test_ids_that_have_one_hash_are_told_apart_in_a_moment(tmp_path: Path) -> None:
    """Tables by these integers took processor time by the square of their number: minutes."""
    hashes_to_0 = sys.hash_info.modulus
    ids = range(hashes_to_0, 60_000 * hashes_to_0, hashes_to_0)
    path = tmp_path / "trace.json"
    path.write_text(
        json.dumps([{"ph": "X", "name": "a", "tid": each, "ts": 1, "dur": 1} for each in ids])
    )
    ended = _imported(path, "RLIMIT_CPU", 60)
    assert ended.returncode == 0, ended.stderr[-2000:]


def _imported(path: Path, limit: str, value: int) -> subprocess.CompletedProcess[str]:
    given = ["import", str(path), "-o", str(path.with_name("run.kprof"))]
    code = (
        f"import resource; resource.setrlimit(resource.{limit}, ({value}, {value})); "
        f"from kprof_cli.main import run; raise SystemExit(run({given!r}))"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
