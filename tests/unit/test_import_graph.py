"""Folders that can be read from top to bottom: no circle of imports, and none that points up."""

from __future__ import annotations

import subprocess
import sys

import pytest

from import_graph import ROOT, circles, import_graph

MAX_ROOMS = 10

# Folders, and what stands above them.
ABOVE = {
    "kprof.trace": ("kprof.analysis", "kprof.export", "kprof.importers", "kprof.report", "kprof.run"),
    "kprof.analysis": ("kprof.export", "kprof.importers", "kprof.report", "kprof.run"),
    "kprof.analysis.replay": ("kprof.analysis.findings", "kprof.report"),
}  # fmt: skip


@pytest.mark.slow
def test_no_modules_import_each_other() -> None:
    """In all of kprof, but for `import kprof`, which everybody may ask for the version."""
    graph = {name: imported - {"kprof"} for name, imported in import_graph("kprof").items()}
    assert len(graph) > 200
    assert [sorted(circle) for circle in circles(graph)] == []


@pytest.mark.parametrize("package", list(ABOVE))
def test_no_import_points_up(package: str) -> None:
    up = [
        f"{name} imports {other}"
        for name, imported in import_graph("kprof").items()
        for other in imported
        if is_in(name, package) and any(is_in(other, above) for above in ABOVE[package])
    ]
    assert up == []


def test_the_rooms_of_recording_are_few_and_none_imports_one_that_imports_it() -> None:
    """No module stands outside of them."""
    folder = ROOT / "kprof" / "recording"
    assert [path.name for path in folder.glob("*.py")] == ["__init__.py"]
    rooms: dict[str, set[str]] = {}
    for name, imported in import_graph("kprof").items():
        if is_in(name, "kprof.recording") and name.count(".") > 2:
            inside = (other.split(".") for other in imported if is_in(other, "kprof.recording"))
            room = name.split(".")[2]
            rooms.setdefault(room, set()).update({path[2] for path in inside if path[2:]} - {room})
    assert 2 <= len(rooms) <= MAX_ROOMS
    assert any(rooms.values())
    assert circles(rooms) == []


def test_what_a_circle_is() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]
    assert circles({"a": {"b"}, "b": set()}) == []


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_a_process_that_records_loads_nothing_that_only_watching_needs() -> None:
    code = (
        "import sys, kprof.recording.launches.progress\n"
        "print(*(name for name in sys.modules if name.startswith(('kprof.hangs', 'kprof.clocks'))))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == []
