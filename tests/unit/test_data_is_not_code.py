"""Captures are data: no source of ours evaluates text or unpickles bytes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    file
    for folder in ("kprof", "cli", "instrumented_kernels")
    for file in (ROOT / folder).rglob("*.py")
)
# Rewrites a Triton kernel whose module the process has imported: its own source, and nothing that
# comes from a capture.
ALLOWED = {str(ROOT / "kprof" / "triton" / "instrument.py"): ["exec()", "compile()"]}
EVALUATING_CALLS = {"eval", "exec", "compile", "__import__"}
EVALUATING_MODULES = {"pickle", "marshal", "shelve", "dill", "joblib", "yaml"}


def offences(source: str) -> list[str]:
    """Lines of a source that turn data into code, or run a shell."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in EVALUATING_CALLS
        ):
            found.append(f"{node.lineno}: {node.func.id}()")
        if isinstance(node, ast.keyword) and node.arg == "shell":
            found.append(f"{node.value.lineno}: shell=")
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        found += [
            f"{node.lineno}: {name}" for name in names if name.split(".")[0] in EVALUATING_MODULES
        ]
    return found


@pytest.mark.slow
def test_no_source_evaluates_anything():
    found = {str(file): offences(file.read_text(encoding="utf-8")) for file in SOURCES}
    assert len(found) > 30
    calls = {file: [line.split(": ")[1] for line in lines] for file, lines in found.items()}
    assert {file: names for file, names in calls.items() if names} == ALLOWED


@pytest.mark.parametrize(
    "source", ["eval('1')", "import pickle", "from pickle import loads", "run('ls', shell=True)"]
)
def test_the_scan_finds_what_it_looks_for(source):
    assert len(offences(source)) == 1
