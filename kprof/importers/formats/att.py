"""Folders of AMD's thread trace (rocprofv3 --att): waves by SE, CU, SIMD and slot.

    occupancy.json    {"<SE>": [[time, cu, simd, slot, start, kernel], ...], "dispatches": {...}}
    se<S>_sm<simd>_sl<slot>_wv<n>.json    what a wave did: [[state, cycles], ...] from its begin
    realtime.json     [[shader clock, real time of 100 MHz], ...], in newer folders

Times are cycles of the shader clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from kprof.errors import ForeignFormatError
from kprof.importers.collector import Collector, Place, no_cycle
from kprof.importers.foreign import ForeignEvents, Format, ReadOptions
from kprof.importers.reading import read_json
from kprof.regions import Category

_WAVE: Final = re.compile(r"se(\d{1,3})_sm(\d{1,2})_sl(\d{1,3})_wv\d+\.json")
_STATES: Final = ("empty", "idle", "exec", "wait", "stall")
_CATEGORIES: Final = {
    "wave": Category.OTHER,
    "idle": Category.OTHER,
    "exec": Category.COMPUTE,
    "wait": Category.WAIT,
    "stall": Category.WAIT,
}
_REALTIME_NS: Final = 10.0
_WHAT: Final = "a thread trace"


class _Wave(msgspec.Struct):
    begin: int
    cu: int = 0
    timeline: list[tuple[int, int]] = []


class _WaveFile(msgspec.Struct):
    wave: _Wave


def _read(files: Sequence[Path], options: ReadOptions) -> ForeignEvents:
    found = Collector()
    clock = ""
    for rank, folder in enumerate(files):
        if not folder.is_dir():
            raise ForeignFormatError(f"{folder} is no folder; give the whole ui_output_agent_...")
        tick_ns, clock = _tick_ns(folder, options)
        occupancy = read_json(folder / "occupancy.json", dict[str, Any], _WHAT)
        names = occupancy.get("dispatches", {})
        for kernel, name in names.items() if isinstance(names, dict) else ():
            found.launch(str(kernel), str(name))
        for se, events in occupancy.items():
            if se.isdecimal() and len(se) < 4 and isinstance(events, list):
                _collect(found, rank, int(se), events, tick_ns)
        for path in sorted(folder.iterdir()):
            if match := _WAVE.fullmatch(path.name):
                _collect_wave(found, rank, match, read_json(path, _WaveFile, _WHAT).wave, tick_ns)
    return found.events(
        files[0],
        categories=_CATEGORIES,
        taken={
            "rank": "the order of the folders",
            "block": "SE and CU: a trace does not name blocks",
            "warp": "SIMD and slot",
            "launch": "the kernel's id in occupancy.json",
            "clock": clock,
        },
    )


def _tick_ns(folder: Path, options: ReadOptions) -> tuple[float, str]:
    """ns per cycle: as given, else from the records of the real-time clock."""
    if options.tick_ns is not None:
        return options.tick_ns, f"--tick-ns {options.tick_ns:g}"
    pairs = sorted(_pairs(folder / "realtime.json")) if (folder / "realtime.json").exists() else []
    if len(pairs) > 1 and pairs[-1][0] > pairs[0][0] and pairs[-1][1] > pairs[0][1]:
        (first, begin), (last, end) = pairs[0], pairs[-1]
        return _REALTIME_NS * (end - begin) / (last - first), "realtime.json"
    raise no_cycle(folder, "and has no realtime.json that says how long one is")


def _pairs(path: Path) -> Iterator[tuple[int, int]]:
    """Shader and real-time clock, of lists of two or of objects that name them."""
    waiting: list[Any] = [read_json(path, object, _WHAT)]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict) and "shader_clock" in each:
            yield from _pair([each["shader_clock"], each.get("realtime_clock")])
        elif isinstance(each, list) and (pair := list(_pair(each))):
            yield from pair
        elif isinstance(each, list | dict):
            waiting += each.values() if isinstance(each, dict) else each


def _pair(values: list[Any]) -> Iterator[tuple[int, int]]:
    if len(values) == 2 and all(type(value) is int for value in values):
        yield values[0], values[1]


def _collect(found: Collector, rank: int, se: int, events: list[Any], tick_ns: float) -> None:
    for event in events:
        if not isinstance(event, list) or len(event) < 6 or any(type(n) is not int for n in event):
            found.left_out["entries of occupancy.json that are no six numbers"] += 1
            continue
        time, cu, simd, slot, is_start, kernel = event[:6]
        place = _place(rank, se, cu, simd, slot)
        # The end of a wave names no launch of its own.
        if is_start:
            started = place._replace(launch=found.launch(str(kernel)))
            found.begin(place, "wave", round(time * tick_ns), "wave", at=started)
        else:
            found.end(place, round(time * tick_ns), "wave")


def _collect_wave(
    found: Collector, rank: int, match: re.Match[str], wave: _Wave, tick_ns: float
) -> None:
    se, simd, slot = (int(number) for number in match.groups())
    place, time = _place(rank, se, wave.cu, simd, slot), wave.begin
    for state, cycles in wave.timeline:
        if 0 < state < len(_STATES):
            found.span(place, _STATES[state], round(time * tick_ns), round(cycles * tick_ns))
        elif state:
            found.left_out["states of unknown numbers"] += 1
        time += cycles


def _place(rank: int, se: int, cu: int, simd: int, slot: int) -> Place:
    return Place(
        rank, se << 8 | cu & 0xFF, (simd & 7) << 8 | slot & 0xFF, hw_id=se << 8 | cu & 0xFF
    )


FORMAT: Final = Format(
    _read,
    lambda sample: not {"occupancy.json", "filenames.json"}.isdisjoint(sample.names),
    uses=("tick_ns",),
    takes_many=True,
)
