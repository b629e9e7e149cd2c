"""The source line of each region, as `kernel.hip:42`, which editors and terminals open."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from pathlib import Path
from typing import Final

# Kernels stand beside their regions.h.
_SOURCES: Final = frozenset({".hip", ".cu", ".cuh", ".h", ".hpp", ".cpp", ".cc"})
_MOST_SOURCES: Final = 32
_MOST_BYTES: Final = 1 << 20
# How well a line shows a region: it records it, it names it, it declares it.
_RECORDS, _NAMES, _DECLARES = range(3)


# Launches may name the file each time.
@functools.lru_cache(maxsize=64)
def places(path: str, text: str, symbols: tuple[str, ...]) -> tuple[str, ...]:
    """For each symbol of a regions.h the first line beside it that records the region, or names it,
    or else declares it."""
    found = dict.fromkeys(symbols, (_DECLARES + 1, ""))
    _look(Path(path), text, _DECLARES, found)
    with contextlib.suppress(OSError):
        beside = [each for each in sorted(Path(path).parent.iterdir()) if _is_source(each, path)]
        for source in beside[:_MOST_SOURCES]:
            _look(source, source.read_text(encoding="utf-8", errors="replace"), _NAMES, found)
    return tuple(found[symbol][1] for symbol in symbols)


def _is_source(file: Path, regions: str) -> bool:
    # Nothing else is opened: reading from a pipe would wait.
    is_text = file.suffix in _SOURCES and file != Path(regions)
    return is_text and file.is_file() and file.stat().st_size <= _MOST_BYTES


def _look(source: Path, text: str, rank: int, found: dict[str, tuple[int, str]]) -> None:
    for number, line in enumerate(text.splitlines(), start=1):
        code = line.partition("//")[0]
        of_line = _RECORDS if rank == _NAMES and "profile_" in code else rank
        for symbol in set(re.findall(r"\w+", code)) & found.keys():
            if of_line < found[symbol][0]:
                found[symbol] = (of_line, place(source, number))


def place(source: str | Path, line: int) -> str:
    """`kernel.hip:42`, from the working directory where it is below that."""
    path = str(source)
    with contextlib.suppress(OSError):
        path = path.removeprefix(f"{Path.cwd()}{os.sep}")
    return f"{path}:{line}"
