"""Figures of the documentation, and the files that they come from.

A figure is a number with a unit, outside code. Its source is a file of benchmarks/results that its section names, or else
its page, as a path or as `python -m benchmarks.NAME`, or the recording that a picture there is drawn from; the figure is one of
their numbers, rounded, or a percentage that one of them is of its neighbour. Other figures are constants of the code.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import kprof
from benchmarks.explanation_accuracy import BARS
from docs import picture
from kprof import abi, rank_memory
from kprof.analysis.findings import experiment, thresholds
from kprof.clocks import path
from kprof.recording.arenas import ledger
from kprof.recording.endings import lifetime
from kprof.recording.launches import pace
from kprof.recording.rank import recorder, saver
from kprof.recording.retention import drainer
from kprof_cli import recording

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "benchmarks" / "results"
PICTURE: Final = "all_to_all-timeline.png"
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
# What the other numbers of an object in a results file are compared with, and what is a limit for them.
BASES: Final = (
    *("off", "off_us", "not recorded", "before, not recorded", "eval plain", "train plain"),
    *("least_us", "fastest", "torch.compile", "same_copy_us"),
)
LIMITS: Final = ("limit_us", "same_copy_us")
# Words of keys whose numbers are ratios, and what stands for their unit.
RATIOS: Final = ("percent", "share", "over")
RATIO: Final = "ratio"
_LATE: Final = re.search(
    r"kLateTicks = platform::kRealtimeTicksPerSecond / (\d+);",
    (ROOT / "kprof" / "include" / "kprof" / "wait_lines.h").read_text(),
)
assert _LATE
LATE_NS: Final = 1e9 / int(_LATE[1])
# Figures that are constants of the code: the page (all of them where none is named), the number, and its unit.
CONSTANTS: Final[tuple[tuple[str, float, str], ...]] = (
    ("", abi.RECORD_BYTES, "bytes"),
    ("", abi.CHUNK_BYTES, "bytes"),
    ("", abi.CONTROL_BYTES, "bytes"),
    ("", abi.WAIT_LINE.itemsize, "bytes"),
    ("", recorder.DEFAULT_ARENA_BYTES, "bytes"),
    ("", int(recording._ARENA_SIZE_OF_INDUCTOR.removesuffix("MiB")), "MiB"),
    ("clocks.md", path.CURVATURE_PRIOR[0][0], "s"),
    ("clocks.md", path.CURVATURE_PRIOR[0][1], "ns"),
    ("clocks.md", path.CURVATURE_PRIOR[2][1], "ns"),
    *(("findings.md", least, RATIO) for _, least in BARS.values()),
    ("findings.md", thresholds.LONG_NS, "ns"),
    ("findings.md", thresholds.HARMLESS_LOSS, RATIO),
    ("findings.md", thresholds.BEYOND_USE, RATIO),
    ("findings.md", experiment._SIZES[1], RATIO),
    ("findings.md", experiment._SIZES[2], RATIO),
    ("hangs.md", rank_memory.HANG_BYTES, "bytes"),
    ("hangs.md", LATE_NS, "ns"),
    ("long_runs.md", abi.CHUNKS_OFFSET, "bytes"),
    ("interventions.md", saver._GRACE_S, "s"),
    ("interventions.md", lifetime._PATIENCE_S, "s"),
    ("long_runs.md", saver._GRACE_S, "s"),
    ("long_runs.md", drainer._LOOK_S, "s"),
    ("long_runs.md", ledger._MAX_IN_MEMORY, "bytes"),
    ("long_runs.md", pace.BURSTS_S, "s"),
    ("triton.md", LATE_NS, "ns"),
)
_NUMBER: Final = r"\d[\d,]*(?:\.\d+)?"
_FIGURE: Final = re.compile(
    rf"(?<![\w.])({_NUMBER})(?:(?: to |, | and )[+\u2212-]?({_NUMBER}))* ?({'|'.join([*TIMES, *SIZES])}|%|x|points|GB/s)(?![\w/]| \d)"
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

    page: str
    title: str
    figures: list[Figure]
    sources: frozenset[str]


def sections(page: Path) -> Iterator[Section]:
    """A page without its code. A section that names no source has those of the page."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    of_page = _named(text)
    for part in re.split(r"(?m)^(?=## )", text):
        prose = re.sub(r"`[^`\n]*`|\]\([^)\n]*\)", "", part)
        title = part.partition("\n")[0]
        yield Section(page.name, title, list(_figures(prose)), _named(part) or of_page)


def _figures(prose: str) -> Iterator[Figure]:
    for found in _FIGURE.finditer(prose):
        around = " ".join(prose[max(0, found.start() - 60) : found.end() + 20].split())
        for number in re.findall(_NUMBER, found[0]):
            yield Figure(number, found[3], around)


def _named(text: str) -> frozenset[str]:
    paths = re.findall(r"benchmarks/results/(\w+\.\w+)", text)
    paths += [f"{name}.json" for name in re.findall(r"benchmarks\.(\w+)", text)]
    pictures = re.findall(rf"traces/pictures/{PICTURE}", text)
    return frozenset(path for path in paths if (RESULTS / path).exists()) | {*pictures}


def is_from(figure: Figure, section: Section) -> bool:
    """Whether a source of its section, or a constant, has a number that is rounded to the figure."""
    low, high = figure.range
    scales = TIMES if figure.unit in TIMES else SIZES if figure.unit in SIZES else {}
    constants = [each[1:] for each in CONSTANTS if each[0] in ("", section.page)]
    for value, unit in itertools.chain(constants, *map(_numbers, section.sources)):
        if figure.unit in ("%", "points"):
            candidates = [] if unit in TIMES | SIZES else [value, 100 * value, 100 * (value - 1)]
        elif unit:
            candidates = [value * scales[unit]] if unit in scales else []
        elif scales:
            candidates = [value * scale for scale in set(scales.values())]
        else:
            candidates = [value]
        if any(low <= abs(each) <= high for each in candidates):
            return True
    return False


@functools.cache
def _numbers(name: str) -> frozenset[tuple[float, str]]:
    """All numbers of a results file, with the unit that their key, or the text behind them, says."""
    if name.endswith(PICTURE):
        return frozenset(_drawn())
    text = (RESULTS / name).read_text()
    return frozenset(_leaves(json.loads(text), "") if name.endswith(".json") else _written(text))


def _drawn() -> Iterator[tuple[float, str]]:
    """The longest span in the README's picture and the last end, of blocks that wait for rank 3 and of others."""
    run = kprof.open(picture.TRACE).select(ranks=0, blocks=picture.BLOCKS)
    rows = run.select(launches=picture.launch_of(run)).frame(
        """SELECT max(duration_ns) AS longest_ns, max(end_ns) - (SELECT min(start_ns) FROM events) AS end_ns
        FROM events WHERE warp = 0 GROUP BY block % 4 = 3"""
    )
    yield from ((value, "ns") for value in rows.to_numpy(float).ravel().tolist())


def _written(text: str, least: str = "?") -> Iterator[tuple[float, str]]:
    units = "|".join([*TIMES, *SIZES])
    for number, unit in re.findall(rf"({_NUMBER}) ?({units}){least}", text):
        yield float(number.replace(",", "")), unit


def _leaves(value: Any, unit: str) -> Iterator[tuple[float, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _written(key, least="")
            yield from _leaves(inner, _unit_of(key, unit))
        yield from ((ratio, RATIO) for ratio in _against_neighbours(value))
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, unit)
    elif isinstance(value, (int, float)):
        yield float(value), unit


def _unit_of(key: str, unit: str) -> str:
    """That of the key's last word that is one, or else that of what is around."""
    words = re.split(r"[_ (),]+", key)
    if unit == RATIO or any(word in RATIOS for word in words):
        return RATIO
    if re.match(_NUMBER, key):
        return unit
    return next((word for word in reversed(words) if word in TIMES or word in SIZES), unit)


def _against_neighbours(row: dict[str, Any]) -> Iterator[float]:
    """The numbers of an object, divided by those of its bases; its limits, divided by them."""

    def of(inner: Any) -> float:
        if isinstance(inner, dict):
            inner = next((inner[key] for key in ("us", "median", "step_ms") if key in inner), 0)
        return float(inner) if isinstance(inner, (int, float)) else 0.0

    variants = row.get("us", {})
    every = [*row.values(), *(variants.values() if isinstance(variants, dict) else ())]
    numbers = [number for number in map(of, every) if number]
    for base in (of(row[name]) for name in BASES if name in row):
        yield from (number / base for number in numbers if base)
    for limit in (of(row[name]) for name in LIMITS if name in row):
        yield from (limit / number for number in numbers)


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
        if not is_from(figure, section)
    }
