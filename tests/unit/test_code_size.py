"""Functions and files stay small enough to be read at once."""

from __future__ import annotations

from pathlib import Path

from benchmarks.code_size import PRODUCT, functions_of, num_python_lines

ROOT = Path(__file__).parents[2]
MAX_FUNCTION_LINES = 50
MAX_FILE_LINES = 330
FILES = [path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]


def test_no_function_is_longer_than_50_lines():
    long = [
        f"{path.relative_to(ROOT)}: {name} has {length} lines"
        for path in FILES
        for length, name in functions_of(path)
        if length > MAX_FUNCTION_LINES
    ]
    assert not long, "\n".join(long)


def test_no_file_has_more_than_330_lines_of_code():
    """Comments, docstrings and blank lines not counted: with them that is about 400 lines."""
    # Finding comments takes long, and a file with fewer lines than that has fewer of code.
    long = {path: text for path in FILES if (text := path.read_text()).count("\n") > MAX_FILE_LINES}
    lengths = {path.relative_to(ROOT): num_python_lines(text) for path, text in long.items()}
    assert lengths
    assert not {path: length for path, length in lengths.items() if length > MAX_FILE_LINES}
