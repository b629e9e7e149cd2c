"""Each format is recognised, whatever is done to its file, and read as a second reader reads it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from guises import MADE, check_damage, check_guise

import foreign_files
import kprof
from foreign_files import Row, from_first
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
