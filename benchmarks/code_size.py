"""Size and shape of the product code: lines, functions, modules at the root of kprof, imports
between its folders.

    python benchmarks/code_size.py [FOLDER OF A CHECKOUT]

Run it on two checkouts to compare them. Lines are those with code: no blank lines, comments or
docstrings.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

PRODUCT = ("kprof", "cli", "instrumented_kernels")
CPP_SUFFIXES = (".h", ".hip", ".cu")
_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    python = [path for folder in PRODUCT for path in sorted((root / folder).rglob("*.py"))]
    cpp = [
        path
        for folder in PRODUCT
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in CPP_SUFFIXES
    ]
    lines = {path: num_python_lines(path.read_text()) for path in python}
    print(f"Python: {sum(lines.values())} lines of code in {len(python)} files")
    print(
        f"C++:    {sum(num_cpp_lines(path.read_text()) for path in cpp)} lines of code in "
        f"{len(cpp)} files"
    )
    both = [*python, *cpp]
    print(
        f"all:    {sum(path.read_text().count(chr(10)) for path in both)} lines with comments and "
        "blanks"
    )

    functions = sorted(
        (
            (length, f"{path.relative_to(root)}:{name}")
            for path in python
            for length, name in functions_of(path)
        ),
        reverse=True,
    )
    lengths = [length for length, _ in functions]
    print(
        f"functions: {len(lengths)}, median {statistics.median(lengths):.0f} lines, "
        f"90th percentile {sorted(lengths)[int(0.9 * len(lengths))]}, longest:"
    )
    for length, name in functions[:15]:
        print(f"  {length:4} {name}")

    modules = [path for path in (root / "kprof").glob("*.py") if path.stem != "__init__"]
    folders = [path.parent for path in (root / "kprof").glob("*/__init__.py")]
    edges = {
        edge for path in (root / "kprof").rglob("*.py") for edge in edges_of(path, root / "kprof")
    }
    print(
        f"top level of kprof: {len(modules)} modules, {len(folders)} packages; "
        f"{len(edges)} import edges between them"
    )


def num_python_lines(text: str) -> int:
    """Lines with code, docstrings left out."""
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    used = {
        line
        for token in tokens
        if token.type not in _NOT_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(used - docstrings)


def num_cpp_lines(text: str) -> int:
    """Lines that are neither blank nor a comment as a whole."""
    stripped = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not line.startswith(("//", "/*", "*")) for line in stripped)


def functions_of(path: Path) -> Iterator[tuple[int, str]]:
    """Length, the docstring included, and name of every function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, node.name


def edges_of(path: Path, package: Path) -> Iterator[tuple[str, str]]:
    """(importing, imported) between the modules and packages right below kprof, imports inside functions included."""
    importing = path.relative_to(package).parts[0].removesuffix(".py")
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (
                [node.module]
                if node.module != "kprof"
                else [f"kprof.{alias.name}" for alias in node.names]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "kprof" and len(parts) > 1 and parts[1] != importing:
                yield importing, parts[1]


if __name__ == "__main__":
    main()
