"""Each format is recognised, whatever is done to its file, and read as a second reader reads it; what costs too much is refused."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pickle
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from guises import MADE, check_damage, check_guise

import foreign_files
import kprof
from foreign_files import Row, att, flight_recorder, from_first, nccl_profiler, nsys, torch_profiler
from kprof.errors import ForeignFormatError
from kprof.importers import detect, format_names, import_events
from kprof.importers.foreign import ReadOptions
from kprof.importers.formats.perfetto import labels_of

FORMATS = foreign_files.modules()
# `python tests/fuzz/guises.py` tries any number of them.
NUM_GUISES = 12
Check = Callable[[str, int, Path], str]
# These count cycles, and do not say how long one is.
HALF_NS = {"proton", "proton_chrome", "megakernels"}


def rows_of(path: Path) -> list[Row]:
    events = kprof.open(path).frame(
        "SELECT rank, block, warp, region, start_ns, duration_ns FROM events"
    )
    return from_first([Row(*row) for row in events.itertuples(index=False)])


def test_every_format_has_a_file_and_a_second_reader() -> None:
    assert set(FORMATS) == set(format_names())


@pytest.mark.parametrize("what", MADE)
def test_a_second_reader_reads_the_same(
    what: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name, make = MADE[what]
    if name == "perfetto":
        request.getfixturevalue("perfetto_shell")
    files = make(tmp_path)
    assert detect(files) == name
    options = ReadOptions(tick_ns=0.5) if name in HALF_NS else None
    summary = import_events(None, files, tmp_path / "run.kprof", options)
    expected = from_first(FORMATS[name].read(files))
    assert [row[:4] for row in rows_of(summary.path)] == [row[:4] for row in expected]
    for found, wanted in zip(rows_of(summary.path), expected, strict=True):
        # Where ticks are no whole ns, each reader rounds.
        assert abs(found.start_ns - wanted.start_ns) <= 1, (found, wanted)
        assert abs(found.duration_ns - wanted.duration_ns) <= 1, (found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_guise, check_damage])
@pytest.mark.parametrize("what", MADE)
def test_a_file_in_another_guise_is_recognised_and_damage_is_no_other_format(
    what: str, check: Check, tmp_path: Path
) -> None:
    for seed in range(NUM_GUISES):
        check(what, seed, fresh(tmp_path))


def fresh(folder: Path) -> Path:
    """An empty folder in it."""
    shutil.rmtree(folder / "files", ignore_errors=True)
    (folder / "files").mkdir()
    return folder / "files"


PLUGIN = """
import numpy as np
from kprof.importers.foreign import CERTAIN, ForeignEvents, Format

def _read(files, options):
    rank, block, start_ns, duration_ns = np.loadtxt(files[0], dtype=np.int64, skiprows=1).T
    return ForeignEvents(rank, block, np.zeros_like(rank), start_ns, duration_ns, names=("work",))

def _sniff(sample):
    return CERTAIN if sample.head.startswith(b"#mine") else 0.0

FORMAT = Format(_read, _sniff)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package of somebody else, as pip installs it."""
    (tmp_path / "mine.py").write_text(PLUGIN)
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kprof.importers]\nmine = mine:FORMAT\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("mine", None)


def test_a_format_from_outside_is_recognised(plugin: None, tmp_path: Path) -> None:
    (tmp_path / "events.txt").write_text("#mine\n0 3 100 5\n0 4 101 6\n")
    summary = import_events(None, [tmp_path / "events.txt"], tmp_path / "run.kprof")
    assert (summary.kind, rows_of(summary.path)) == (
        "mine",
        [
            Row(0, 3, -1, "work", 0, 5),
            Row(0, 4, -1, "work", 1, 6),
        ],
    )


def test_a_plugin_that_cannot_be_loaded_is_named(plugin: None, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import gone_with_the_wind")
    (tmp_path / "events.txt").write_text("#mine\n0 3 100 5\n0 4 101 6\n")
    with pytest.raises(ForeignFormatError, match=r"plug-in for format mine .* cannot be loaded"):
        detect([tmp_path / "events.txt"])


def test_without_perfettos_trace_processor_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        ForeignFormatError, match=r"trace_processor_shell must read, and that is not in PATH"
    ):
        import_events(None, FORMATS["perfetto"].make(tmp_path), tmp_path / "run.kprof")


def test_what_perfettos_trace_processor_refuses_is_a_line(
    perfetto_shell: None, tmp_path: Path
) -> None:
    (file,) = FORMATS["perfetto"].make(tmp_path)
    file.write_bytes(b"neither a trace nor text" * 9)
    with pytest.raises(ForeignFormatError, match=r"trace_processor_shell cannot read .*trace"):
        import_events("perfetto", [file], tmp_path / "run.kprof")


def test_tracks_of_one_name_are_not_one_block() -> None:
    def track(number: int, **of: object) -> SimpleNamespace:
        none = dict.fromkeys(("parent_id", "tid", "thread", "upid", "pid", "process"))
        return SimpleNamespace(id=number, name="", **none | of)

    rows = [
        track(1, upid=1, pid=10, process="python", tid=5, thread="worker"),
        track(2, upid=1, pid=10, process="python", tid=6, thread="worker"),
        track(3, upid=2, pid=11, process="python", tid=7, thread="main"),
        track(4, upid=3, pid=12, process="other", tid=8),
        track(5, upid=3, pid=12, process="other", tid=8),
    ]
    found = labels_of(rows, {1, 2, 3, 4})
    assert found == {
        1: ("python 10", "worker 1"),
        2: ("python 10", "worker 2"),
        3: ("python 11", "main"),
        4: ("other", "8"),
    }


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\x00" * 4096, b"{}", b"[1, 2]", b"a,b\n1,2\n"]
)
def test_what_is_no_trace_is_not_guessed(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ForeignFormatError, match=r"does not recognise .*: say which format"):
        detect([tmp_path / "file"])


def test_channels_without_an_end_are_counted_and_their_begins_kept(tmp_path):
    summary = import_events(None, nccl_profiler.make(tmp_path), tmp_path / "run.kprof")
    assert summary.left_out == {"channels without an end": 2 * 3 * 7}
    run = kprof.open(summary.path)
    rows = run.sql(
        "SELECT kernel, region, count(*) AS n FROM events GROUP BY ALL ORDER BY ALL"
    ).to_pylist()
    assert [(row["kernel"], row["region"], row["n"]) for row in rows] == [
        ("AllReduce RING LL", "AllReduce RING LL", 6),
        ("AllReduce RING LL", "AllReduce RING LL begins", 42),
    ]
    assert [info.counts.dropped for info in run.manifest.ranks] == [21, 21]


def test_a_rank_that_is_behind_is_named(tmp_path):
    summary = import_events(None, flight_recorder.make(tmp_path), tmp_path / "run.kprof")
    assert (
        summary.notices[0]
        == "group default_pg: others have enqueued collective 4, rank 1 ends with 3"
    )


class Calls:
    def __reduce__(self):
        return os.system, ("touch called",)


@pytest.mark.parametrize("entries", [[Calls()], Calls(), Path("x"), {1, 2}])
def test_a_pickle_that_would_call_something_is_refused(tmp_path, monkeypatch, entries):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "dump"
    path.write_bytes(pickle.dumps({"entries": entries, "version": "2.10"}, protocol=2))
    with pytest.raises(ForeignFormatError, match="it is no plain data"):
        import_events("flight_recorder", [path], tmp_path / "run.kprof")
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_pickle_is_one_error(tmp_path, seed):
    import random

    draw = random.Random(seed)
    (path, _) = flight_recorder.make_pickle(tmp_path)
    data = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 8)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    path.write_bytes(data[: draw.randint(1, len(data))] if seed % 2 else data)
    with contextlib.suppress(ForeignFormatError):
        import_events("flight_recorder", [path], tmp_path / "run.kprof", force=True)


ENTRY = b"}(\x8c\x0dprocess_group\x8c\x010\x8c\x01a\x86\x8c\x0eprofiling_name\x8c\x03sumu"


@pytest.mark.slow
def test_many_marks_take_linear_time(tmp_path):
    """Each close looked through all marks: hours."""
    path = tmp_path / "dump"
    path.write_bytes(
        b"\x80\x04}\x8c\x07entries](" + ENTRY + b"(" * 500_000 + b"t" * 500_000 + b"0."
    )
    with pytest.raises(ForeignFormatError, match=r"no plain data \(POP\)"):
        import_events("flight_recorder", [path], tmp_path / "run.kprof")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        # 15 kB, packed, took gigabytes.
        *(
            (b"]" + unit * (15_000_000 // len(unit)) + b".", "more than 10,000 values|no list")
            for unit in (b"]", b"}", b"]\x94", b"]K\x01a", b"(", b"(e")
        ),
        # One entry again and again, keys that collide, places of a memo that is nearly empty.
        (
            b"}\x8c\x07entries](" + ENTRY + b"\x94" + b"h\x00" * 1000 + b"es.",
            "one entry several times",
        ),
        (b"}" + b"\x8a\x09" + ((1 << 61) - 1).to_bytes(9, "little") + b"Ns.", "no dict of texts"),
        (b"]r\xff\xff\xff\x7f.", "numbers a value 2147483647 where 0 comes next"),
    ],
    ids=range(9),
)
def test_pickles_that_cost_more_than_they_hold_are_refused(tmp_path, monkeypatch, values, said):
    monkeypatch.setattr("kprof.importers.formats.flight_recorder._MOST_OPERATIONS", 10_000)
    path = tmp_path / "dump"
    path.write_bytes(gzip.compress(b"\x80\x04" + values))
    with pytest.raises(ForeignFormatError, match=said):
        import_events("flight_recorder", [path], tmp_path / "run.kprof")


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


@pytest.mark.slow
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


@pytest.mark.slow
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
