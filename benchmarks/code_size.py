"""How large is the code, and which functions are the longest?

    python -m benchmarks.code_size                      this checkout
    python -m benchmarks.code_size --against COMMIT     that commit beside it

Lines are counted as `wc -l` does, and without blank lines, comments and docstrings ("with code").
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("kprof", "cli", "instrumented_kernels")
PARTS = {"product": PRODUCT, "tests": ("tests",), "benchmarks": ("benchmarks",)}
SUFFIXES = (".py", ".h", ".hip", ".cpp", ".cu", ".j2")
NUM_LONGEST = 15
_NOT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT),
    *(tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER),
}


def sizes_of(root: Path) -> dict[str, int]:
    """Lines of a checkout, and how many of them have code."""
    found = {}
    for part, folders in PARTS.items():
        files = [path for folder in folders for path in (root / folder).rglob("*")]
        texts = {path: path.read_text() for path in files if path.suffix in SUFFIXES}
        found[part] = sum(text.count("\n") for text in texts.values())
        found[f"{part}, with code"] = sum(
            num_python_lines(text) if path.suffix == ".py" else num_other_lines(text)
            for path, text in texts.items()
        )
    return found


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


def num_other_lines(text: str) -> int:
    """Lines of C++ that are neither blank nor a comment as a whole."""
    stripped = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not line.startswith(("//", "/*", "*")) for line in stripped)


def functions_of(path: Path) -> Iterator[tuple[int, str]]:
    """Length, the docstring included, and name of every function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, node.name


def sizes_at(commit: str) -> dict[str, int]:
    """The same of a commit."""
    folders = [folder for part in PARTS.values() for folder in part]
    command = ["git", "-C", ROOT, "archive", commit, *folders]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as root, tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(root, filter="data")
        return sizes_of(Path(root))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--against", metavar="COMMIT")
    options = parser.parse_args()
    before = sizes_at(options.against) if options.against else {}
    for what, lines in sizes_of(ROOT).items():
        change = f"{before[what]:>9,} {lines - before[what]:>+9,}" if before else ""
        print(f"{what:24} {lines:>9,} {change}")
    functions = [
        (length, f"{path.relative_to(ROOT)}:{name}")
        for folder in PRODUCT
        for path in (ROOT / folder).rglob("*.py")
        for length, name in functions_of(path)
    ]
    print(f"\n{len(functions):,} functions of the product; the longest:")
    for length, name in sorted(functions, reverse=True)[:NUM_LONGEST]:
        print(f"  {length:4} {name}")


if __name__ == "__main__":
    main()
