"""Timings of Megakernels: int32 of shape (SMs, instructions, 128), in cycles since the block began.

Slots are pairs of begin and end by role; from 44 on they are instants. 0 is an empty slot.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from kprof.errors import ForeignFormatError
from kprof.importers.collector import Collector, Place, file_per_rank
from kprof.importers.foreign import Format
from kprof.importers.reading import read_array
from kprof.importers.sample import Sample

_NUM_SLOTS: Final = 128
# The first slot of each role, whose end is the next slot.
_ROLES: Final = {0: "controller", 5: "loader", 7: "launcher", 9: "storer"} | {
    11 + 2 * i: f"consumer {i}" for i in range(16)
}
_FIRST_INSTANT: Final = 44


def _collect(found: Collector, path: Path, rank: int) -> None:
    times = read_array(path, "<i4", "timings of Megakernels")
    if times.ndim != 3 or times.shape[2] != _NUM_SLOTS:
        raise ForeignFormatError(
            f"{path} has the shape {times.shape}, expected (SMs, instructions, {_NUM_SLOTS})"
        )
    for sm, of_sm in enumerate(times):
        for slots in of_sm[of_sm.any(axis=1)].tolist():
            _collect_slots(found, Place(rank, sm, hw_id=sm), slots)


def _collect_slots(found: Collector, place: Place, slots: list[int]) -> None:
    for number, (first, role) in enumerate(_ROLES.items()):
        begin, end = slots[first], slots[first + 1]
        if end:
            found.span(place._replace(warp=number), role, begin, end - begin)
        elif begin:
            found.left_out["spans without an end"] += 1
            found.num_dropped[place.rank] += 1
    for slot, time in enumerate(slots[_FIRST_INSTANT:], start=_FIRST_INSTANT):
        if time:
            found.mark(place, f"slot {slot}", time)


def _sniff(sample: Sample) -> bool:
    header = sample.head[:256]
    is_ours = header.startswith(b"\x93NUMPY") and b"'<i4'" in header
    return is_ours and bool(re.search(rb"\(\d+, \d+, 128\)", header))


FORMAT: Final = Format(
    file_per_rank(
        _collect,
        ("cycles of {:g} ns since each block began", None),
        block="the first index, which is the SM",
        warp="the role",
    ),
    _sniff,
    uses=("tick_ns",),
    takes_many=True,
)
