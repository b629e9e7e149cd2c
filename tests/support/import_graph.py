"""Which module of the product imports which, wherever the import stands: at the top, under TYPE_CHECKING, or in a
function. The import contract of pyproject.toml sees the first kind only."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
Graph = dict[str, set[str]]


@cache
def import_graph(package: str) -> Graph:
    """Module -> modules of the same package that it imports; `package` is a folder of the repository."""
    files = {module_name(path): path for path in (ROOT / package).rglob("*.py")}
    return {name: _imported(path, set(files)) - {name} for name, path in files.items()}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path, known: set[str]) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from package import module` imports the module, `from module import name` the module.
            names |= {
                whole if (whole := f"{node.module}.{alias.name}") in known else node.module
                for alias in node.names
            }
    return names & known


def circles(graph: Graph) -> list[set[str]]:
    """Sets of modules that import each other: those that reach a module that reaches them."""
    reached = {name: _reached(graph, name) for name in graph}
    found = [{other for other in reached[name] if name in reached.get(other, ())} for name in graph]
    return [circle for i, circle in enumerate(found) if circle and circle not in found[:i]]


def _reached(graph: Graph, start: str) -> set[str]:
    reached: set[str] = set()
    left = [start]
    while left:
        new = graph.get(left.pop(), set()) - reached
        reached |= new
        left += new
    return reached
