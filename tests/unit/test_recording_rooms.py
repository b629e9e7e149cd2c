"""The rooms of kprof/recording/: few, and no module or room imports one that imports it."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import kprof.recording

FOLDER = Path(kprof.recording.__file__).parent
MAX_ROOMS = 10


def modules() -> dict[str, Path]:
    paths = [path for path in FOLDER.rglob("*.py") if path.name != "__init__.py"]
    return {
        "kprof.recording." + ".".join(path.relative_to(FOLDER).with_suffix("").parts): path
        for path in paths
    }


def imported(path: Path, known: set[str]) -> set[str]:
    """Also inside functions, and for type checkers."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found & known


def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: imported(path, set(known)) - {name} for name, path in known.items()}


def room_of(module: str) -> str:
    return module.split(".")[2]


def test_every_module_is_in_a_room_and_there_are_few() -> None:
    assert [path.name for path in FOLDER.glob("*.py")] == ["__init__.py"]
    rooms = {room_of(name) for name in modules()}
    assert 2 <= len(rooms) <= MAX_ROOMS


def test_no_module_imports_one_that_imports_it() -> None:
    order = list(TopologicalSorter(graph()).static_order())
    assert len(order) == len(modules())


def test_no_room_imports_one_that_imports_it() -> None:
    rooms: dict[str, set[str]] = {}
    for module, others in graph().items():
        room = rooms.setdefault(room_of(module), set())
        room.update(room_of(other) for other in others)
        room.discard(room_of(module))
    assert any(rooms.values())
    TopologicalSorter(rooms).prepare()


def test_a_circle_would_be_seen(tmp_path: Path) -> None:
    """Through a function and through a type."""
    (tmp_path / "a.py").write_text("def f():\n    from b import g\n")
    (tmp_path / "b.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a\n"
    )
    found = {name: imported(tmp_path / f"{name}.py", {"a", "b"}) for name in "ab"}
    with pytest.raises(CycleError):
        TopologicalSorter(found).prepare()
