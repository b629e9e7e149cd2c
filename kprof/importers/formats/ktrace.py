"""Raw buffers of FlyDSL's KTRACE (0.5): slots of 32 bytes.

8 (partitions + 1) slots of counters, then a region of 256 slots per wave
slot 0 of a region: u32 events issued, u32 block z << 8 | wave, u64 dispatch, u64 queue, u32 x, y
an event: u64 time (10 ns), u64 payload, u32 hw id, u32 XCC, u32 packed, u32 slot of its start
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kprof.errors import ForeignFormatError
from kprof.importers.collector import Collector, Place, file_per_rank
from kprof.importers.foreign import Format
from kprof.importers.reading import read_words
from kprof.importers.sample import Sample

_REGION: Final = 256
_MOST_PARTITIONS: Final = 1024
_HEAD: Final = np.dtype("<u4, <u4, <u8, <u8, <u4, <u4")
_HEAD.names = ("issued", "wave", "dispatch", "queue", "x", "y")
_EVENT: Final = np.dtype("<u8, <u8, <u4, <u4, <u4, <u4")
_MARK, _PUSH, _POP, _START, _STOP = range(5)


def _collect(found: Collector, path: Path, rank: int) -> None:
    regions = _regions(read_words(path, "<u4", "a buffer of KTRACE"))
    if regions is None:
        raise ForeignFormatError(f"{path} has no regions of waves, as KTRACE writes them")
    for block, region in zip(_blocks(regions), regions, strict=True):
        if region.view(_HEAD)["issued"][0]:
            _collect_wave(found, region, Place(rank, block))


def _regions(words: NDArray[np.uint32]) -> list[NDArray[Any]] | None:
    """The regions of waves as bytes; None where no number of partitions fits."""
    slots = words[: len(words) // 8 * 8].reshape(-1, 8)
    for num_partitions in range(1, _MOST_PARTITIONS):
        rest = slots[8 * (num_partitions + 1) :]
        if len(rest) < _REGION:
            return None
        if len(rest) % _REGION == 0 and _are_sound(rest.reshape(-1, _REGION, 8)):
            return [region.reshape(-1) for region in rest.reshape(-1, _REGION, 8)]
    return None


def _are_sound(regions: NDArray[np.uint32]) -> bool:
    """Whether what is used of them is events and the rest is empty."""
    issued = np.minimum(regions[:, 0, 0], _REGION - 1)
    is_used = np.arange(1, _REGION) <= issued[:, None]
    kinds = regions[:, 1:, 6] >> 24 & 7
    has_time = regions[:, 1:, :2].any(axis=2)
    return bool(is_used.any() and (kinds[is_used] <= _STOP).all() and (has_time == is_used).all())


def _blocks(regions: list[NDArray[Any]]) -> list[int]:
    """x where all else is 0, else the place among all (z, y, x)."""
    heads = [region.view(_HEAD)[0] for region in regions]
    where = [(int(head["wave"]) >> 8, int(head["y"]), int(head["x"])) for head in heads]
    if not any(z or y for z, y, _ in where):
        return [x for _, _, x in where]
    order = {each: i for i, each in enumerate(sorted(set(where)))}
    return [order[each] for each in where]


def _collect_wave(found: Collector, region: NDArray[Any], place: Place) -> None:
    head = region.view(_HEAD)[0]
    issued = int(head["issued"])
    if issued > _REGION - 1:
        found.num_dropped[place.rank] += issued - (_REGION - 1)
    place = place._replace(
        warp=int(head["wave"]) & 0xFF, launch=found.launch(int(head["dispatch"]))
    )
    opened: dict[int, tuple[str, int]] = {}
    for slot, (time, kind, name, start, hw) in enumerate(_events(found, region, issued), start=1):
        at = place._replace(hw_id=hw)
        if kind == _MARK:
            found.mark(at, name, time)
        elif kind in (_PUSH, _START):
            opened[slot] = name, time
        elif start in opened:
            begun, begin = opened.pop(start)
            found.span(at, begun, begin, time - begin)
        else:
            # Counts it as an end without a beginning.
            found.end(at, time, "none")
    for name, begin in opened.values():
        found.begin(place, name, begin)


def _events(
    found: Collector, region: NDArray[Any], issued: int
) -> Iterator[tuple[int, int, str, int, int]]:
    """Time, kind, name, slot of the start, processor."""
    for event in region.view(_EVENT)[1 : min(issued, _REGION - 1) + 1].tolist():
        time, _, hw, xcc, packed, start = event
        name = found.name(packed & 0xFFFFFF)
        yield time, packed >> 24 & 7, name, start, (hw & 0xFFFF) | (xcc & 0xFF) << 16


def _sniff(sample: Sample) -> float:
    # A head that is cut has no whole number of regions.
    words = sample.words("<u4")
    return 0.8 if len(words) < 1 << 18 and _regions(words) is not None else 0.0


FORMAT: Final = Format(
    file_per_rank(
        _collect,
        ("s_memrealtime, 10 ns a tick", 10.0),
        block="block_x, or all of x, y, z in their order",
        warp="the wave's number",
        launch="dispatch_id",
        processor="hw_id and xcc_id",
    ),
    _sniff,
    uses=("names", "tick_ns"),
    takes_many=True,
)
