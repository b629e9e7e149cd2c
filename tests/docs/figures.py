"""Figures of the documentation, and the files that they come from.

A figure is a number with a unit, outside code. Its source is a file of benchmarks/results that its section names, or else
its page, as a path or as `python -m benchmarks.NAME`; the figure is one of the file's numbers, rounded. Some figures are
constants of the code.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "benchmarks" / "results"
TIMES: Final = {
    "ns": 1.0,
    "us": 1e3,
    "ms": 1e6,
    "s": 1e9,
    "seconds": 1e9,
    "minutes": 60e9,
    "hours": 3600e9,
}
SIZES: Final = {
    "bytes": 1.0,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
}
# Figures that are constants of the code: the file, and what finds the number there, and its unit.
CONSTANTS: Final = (
    ("kprof/abi.py", r"^RECORD_BYTES: Final = (\d+)$", "bytes"),
    ("kprof/abi.py", r"^CHUNK_BYTES: Final = (\d+)$", "bytes"),
    ("kprof/abi.py", r"^CONTROL_BYTES: Final = (\d+)$", "bytes"),
    ("kprof/abi.py", r"^assert WAIT_LINE.itemsize == (\d+)$", "bytes"),
    ("kprof/recording/rank/recorder.py", r"^DEFAULT_ARENA_BYTES: Final = (\d+) << 20$", "MiB"),
    ("kprof/triton/waits.py", r"^_LATE_NS: Final = ([\d_]+)$", "ns"),
)
_NUMBER: Final = r"\d[\d,]*(?:\.\d+)?"
_FIGURE: Final = re.compile(
    rf"(?<![\w.])({_NUMBER})(?:(?: to |, | and )[+\u2212-]?({_NUMBER}))* ?({'|'.join([*TIMES, *SIZES])}|%|x|points|GB/s)(?![\w/])"
)


class Figure(NamedTuple):
    """A number as it stands, its unit, and what is around it."""

    number: str
    unit: str
    around: str

    @property
    def range(self) -> tuple[float, float]:
        """What would be rounded to it, in ns or bytes where it is a time or a size."""
        plain = self.number.replace(",", "")
        decimals = len(plain.partition(".")[2])
        zeros = len(plain) - len(plain.rstrip("0")) if "." not in plain and len(plain) > 2 else 0
        half = 0.5000001 * 10.0 ** (zeros - decimals)
        scale = (TIMES | SIZES).get(self.unit, 1.0)
        return (float(plain) - half) * scale, (float(plain) + half) * scale


class Section(NamedTuple):
    """What stands under one heading: its figures, and the numbers of its sources."""

    title: str
    figures: list[Figure]
    sources: frozenset[str]


def sections(page: Path) -> Iterator[Section]:
    """A page without its code. A section that names no source has those of the page."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    of_page = _named(text)
    for part in re.split(r"(?m)^(?=## )", text):
        prose = re.sub(r"`[^`\n]*`|\]\([^)\n]*\)", "", part)
        yield Section(part.partition("\n")[0], list(_figures(prose)), _named(part) or of_page)


def _figures(prose: str) -> Iterator[Figure]:
    for found in _FIGURE.finditer(prose):
        around = " ".join(prose[max(0, found.start() - 60) : found.end() + 20].split())
        for number in re.findall(_NUMBER, found[0]):
            yield Figure(number, found[3], around)


def _named(text: str) -> frozenset[str]:
    paths = re.findall(r"benchmarks/results/(\w+\.\w+)", text)
    paths += [f"{name}.json" for name in re.findall(r"benchmarks\.(\w+)", text)]
    return frozenset(path for path in paths if (RESULTS / path).exists())


def is_from(figure: Figure, sources: frozenset[str]) -> bool:
    """Whether one of the files has a number that is rounded to the figure."""
    low, high = figure.range
    for name in ("", *sources):
        for value, unit in _numbers(name) if name else _constants():
            scales = TIMES if figure.unit in TIMES else SIZES if figure.unit in SIZES else {}
            if figure.unit in ("%", "points"):
                candidates = [value, 100 * value, 100 * (value - 1)]
            elif unit in scales:
                candidates = [value * scales[unit]]
            elif unit or not scales:
                candidates = [value]
            else:
                candidates = [value * scale for scale in set(scales.values())]
            if any(low <= abs(each) <= high for each in candidates):
                return True
    return False


@functools.cache
def _constants() -> tuple[tuple[float, str], ...]:
    found = []
    for file, pattern, unit in CONSTANTS:
        match = re.search(pattern, (ROOT / file).read_text(), flags=re.MULTILINE)
        assert match, f"{file} has nothing like {pattern}"
        found.append((float(match[1]), unit))
    return tuple(found)


@functools.cache
def _numbers(name: str) -> tuple[tuple[float, str], ...]:
    """All numbers of a results file, with the unit that their key, or the text behind them, says."""
    text = (RESULTS / name).read_text()
    if name.endswith(".json"):
        return tuple(set(_leaves(json.loads(text), "")))
    units = "|".join([*TIMES, *SIZES])
    return tuple(
        (float(number.replace(",", "")), unit)
        for number, unit in re.findall(rf"({_NUMBER}) ?({units})?", text)
    )


def _leaves(value: Any, unit: str) -> Iterator[tuple[float, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            words = re.split(r"[_ ()]", key)
            yield from _leaves(
                inner, next((w for w in reversed(words) if w in TIMES or w in SIZES), unit)
            )
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, unit)
    elif isinstance(value, (int, float)):
        yield float(value), unit


def pages() -> list[Path]:
    """What the documentation's site shows, apart from what tests of recordings read."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found += sorted((ROOT / "instrumented_kernels").glob("*/README.md"))
    return [page for page in found if page.name != "stories.md"]


def without_source() -> dict[str, str]:
    """The figures that none of their sources has, as "page: figure", and what is around each."""
    return {
        f"{page.relative_to(ROOT)}: {figure.number} {figure.unit}": figure.around
        for page in pages()
        for section in sections(page)
        for figure in section.figures
        if not is_from(figure, section.sources)
    }


if __name__ == "__main__":
    print("\n".join(without_source()))
