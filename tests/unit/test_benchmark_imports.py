"""Benchmarks import what the product has: many run on a GPU only, or import inside functions."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = ("kprof", "kprof_cli", "instrumented_kernels", "benchmarks")


def imported_names(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            yield from ((node.module, alias.name) for alias in node.names)


def exists(module: str, name: str) -> bool:
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        # A library that is not installed, such as Triton, says nothing of our names.
        return not (error.name or "").startswith(OURS)
    return True


def test_every_name_exists() -> None:
    files = sorted((ROOT / "benchmarks").rglob("*.py"))
    assert files
    missing = [
        f"{file.relative_to(ROOT)}: {module}.{name}"
        for file in files
        for module, name in imported_names(file)
        if not exists(module, name)
    ]
    assert missing == []


def test_no_test_imports_another() -> None:
    """What several tests need is in tests/support."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert files
    found = [
        f"{file.relative_to(ROOT)}: {node.module}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("test_")
    ]
    assert found == []
