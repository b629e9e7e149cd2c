"""Dumps of NPKit (MSCCL++, RCCL, patched NCCL): a folder, or the files in it.

    gpu_events_rank_<r>_buf_<block>          16 bytes an event: u8 type, u32 size, u24, u64 time
    gpu_clock_rate_rank_<r>                  kHz as text
    cpu_clock_period_{num,den}_rank_<r>      seconds per tick of the host's clock, as text

Events 1 and 2 relate the GPU's time to the host's. The other types are those of npkit_event.h; a
copy of it beside the files gives them names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kprof.errors import ForeignFormatError
from kprof.importers.collector import Collector, Place
from kprof.importers.foreign import ForeignEvents, Format, Guess, ReadOptions
from kprof.importers.reading import read_bytes
from kprof.importers.sample import Sample

_EVENT: Final = np.dtype([("type", "u1"), ("size", "<u4"), ("rest", "u1", 3), ("time", "<u8")])
_GPU: Final = re.compile(r"gpu_events_rank_(\d{1,5})_buf_(\d{1,9})")
_CPU: Final = re.compile(r"cpu_events_rank_\d{1,5}_channel_\d{1,9}")
_SYNC_GPU, _SYNC_CPU = 1, 2
_DEFINE: Final = re.compile(
    rb"#define\s+NPKIT_EVENT_(\w+?)_(ENTRY|EXIT)\s+(0[xX][0-9a-fA-F]{1,16}|\d{1,20})"
)
# Nearer pairs of times say less about the rate than the nominal one does.
_LEAST_SYNC_NS: Final = 10**6
_WHAT: Final = "a file of NPKit"


def _read(files: Sequence[Path], _: ReadOptions) -> ForeignEvents:
    paths = {path.name: path for path in _all(files)}
    header = paths.get("npkit_event.h")
    kinds = _kinds(read_bytes(header, _WHAT) if header else b"")
    found = Collector()
    for name, path in paths.items():
        if match := _GPU.fullmatch(name):
            _collect(found, path, Place(int(match[1]), int(match[2])), paths, kinds)
        elif _CPU.fullmatch(name):
            found.left_out["events of the host's threads"] += len(read_bytes(path, _WHAT)) // 16
    taken = {
        "rank": "names of files",
        "block": "buf in names of files",
        "clock": Guess("the host's time at each launch, then the GPU's rate"),
        "names": "npkit_event.h" if kinds else Guess("pairs of odd and even types"),
    }
    return found.events(files[0], taken=taken)


def _all(files: Sequence[Path]) -> Iterable[Path]:
    for path in files:
        yield from sorted(path.iterdir()) if path.is_dir() else [path]


def _kinds(header: bytes) -> dict[int, tuple[str, bool]]:
    """The name of each type, and whether it is an entry."""
    found = _DEFINE.findall(header)
    return {_code(code): (name.decode().lower(), end == b"ENTRY") for name, end, code in found}


def _code(text: bytes) -> int:
    """A number as C has it: hexadecimal, octal or decimal."""
    is_octal = text[:1] == b"0" and set(text) <= set(b"01234567")
    return int(text, 16 if text[:2] in (b"0x", b"0X") else 8 if is_octal else 10)


def _number(paths: dict[str, Path], name: str) -> Fraction:
    if name not in paths:
        raise ForeignFormatError(f"the dump lacks {name}; import the whole folder of NPKit")
    text = read_bytes(paths[name], _WHAT)
    try:
        number = Fraction(text.decode("ascii", "replace").strip()[:40])
    except (ValueError, ZeroDivisionError):
        number = Fraction(0)
    if not 0 < number < 10**18:
        raise ForeignFormatError(f"{paths[name]} holds {text[:40]!r}, expected a number above 0")
    return number


def _collect(
    found: Collector,
    path: Path,
    place: Place,
    paths: dict[str, Path],
    kinds: dict[int, tuple[str, bool]],
) -> None:
    data = read_bytes(path, _WHAT)
    events = np.frombuffer(data[: len(data) // 16 * 16], _EVENT)
    events = events[events["type"] != 0]
    rank = place.rank
    period_num = _number(paths, f"cpu_clock_period_num_rank_{rank}")
    period_ns = 10**9 * period_num / _number(paths, f"cpu_clock_period_den_rank_{rank}")
    tick_ns = 10**6 / _number(paths, f"gpu_clock_rate_rank_{rank}")
    for kind, size, time in zip(
        events["type"].tolist(),
        events["size"].tolist(),
        _times_ns(events, period_ns, tick_ns),
        strict=True,
    ):
        if kind in (_SYNC_GPU, _SYNC_CPU):
            continue
        name, is_entry = kinds.get(kind, (f"event {kind - (kind + 1) % 2}", bool(kind % 2)))
        if is_entry:
            found.begin(place, name, time, name, {"bytes": size})
        else:
            found.end(place, time, name)


def _times_ns(events: NDArray[Any], period_ns: Fraction, tick_ns: Fraction) -> list[int]:
    """The host's ns of each event, by the latest pair of times before it."""
    kinds, times = events["type"], events["time"].tolist()
    at_cpu, at_gpu = (np.flatnonzero(kinds == kind).tolist() for kind in (_SYNC_CPU, _SYNC_GPU))
    # Times of the host as fractions: floats are 256 ns apart there.
    pairs = [(times[i] * period_ns, times[k]) for i, k in zip(at_cpu, at_gpu, strict=False)]
    if not pairs:
        return [round(time * tick_ns) for time in times]
    (begin_ns, first), (end_ns, last) = pairs[0], pairs[-1]
    if end_ns - begin_ns > _LEAST_SYNC_NS and last > first:
        tick_ns = (end_ns - begin_ns) / (last - first)
    rate = float(tick_ns)
    bases = [(round(base), ticks) for base, ticks in pairs]
    latest = np.searchsorted(at_gpu[: len(pairs)], np.arange(len(events)), "right") - 1
    return [
        bases[i][0] + round((time - bases[i][1]) * rate)
        for i, time in zip(np.maximum(latest, 0).tolist(), times, strict=True)
    ]


def _sniff(sample: Sample) -> bool:
    ours = rf"{_GPU.pattern}|{_CPU.pattern}|[cg]pu_clock_\w+_rank_\d+|npkit_event\.h"
    return sample.matches(ours)


FORMAT: Final = Format(_read, _sniff, takes_many=True)
