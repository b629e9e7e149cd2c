"""JSON of NVIDIA's IKET: ranges, markers and the lifetimes of warps.

`run-iket profile --postprocess json` writes a file per process. With `--warp-trace` it has the
start and end of every warp of every kernel, and no ranges. Times are globaltimer ns in steps of 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from kprof.errors import ForeignFormatError
from kprof.importers.collector import Collector, Place
from kprof.importers.foreign import ForeignEvents, Format, ReadOptions
from kprof.importers.reading import read_json
from kprof.importers.sample import Sample
from kprof.regions import LIFETIME, Category

STEP_NS: Final = 32.0
_OF_ONE_WARP: Final = 0


class _Location(msgspec.Struct, rename="camel"):
    sm_id: int
    cta_id: tuple[int, int, int]
    warp_id: int


class _Instant(msgspec.Struct, rename="camel"):
    timestamp: int
    event_id: int = 0


class _Range(msgspec.Struct, rename="camel"):
    range_name_idx: int
    start_ts: int
    end_ts: int
    warp_loc_idxs: list[int]
    range_scope: int = _OF_ONE_WARP
    internal_events: list[_Instant] = []


class _Marker(msgspec.Struct, rename="camel"):
    marker_name_idx: int
    timestamp: int
    loc_idx: int


class _Lifetime(msgspec.Struct, rename="camel"):
    start_ts: int
    end_ts: int
    loc_idx: int


class _Launch(msgspec.Struct):
    kernelName: str  # noqa: N815
    gridDimX: int = 1  # noqa: N815
    gridDimY: int = 1  # noqa: N815
    gridDimZ: int = 1  # noqa: N815
    blockDimX: int = 1  # noqa: N815
    blockDimY: int = 1  # noqa: N815
    blockDimZ: int = 1  # noqa: N815
    ranges: list[_Range] = []
    markers: list[_Marker] = []
    warpLifetimes: list[_Lifetime] = []  # noqa: N815


class _File(msgspec.Struct, rename="camel"):
    location_table: list[_Location]
    launches: list[_Launch]
    string_table: list[str] = []
    graph_launches: dict[str, list[_Launch]] = {}


def _read(files: Sequence[Path], _: ReadOptions) -> ForeignEvents:
    found = Collector()
    kernels: dict[int, str] = {}
    grids: dict[int, tuple[int, int]] = {}
    for rank, path in enumerate(files):
        file = read_json(path, _File, "IKET's JSON")
        launches = [*file.launches, *(one for each in file.graph_launches.values() for one in each)]
        for number, launch in enumerate(launches):
            # Ranks launch the same kernels in the same order, or else have numbers of their own.
            key = (
                number
                if kernels.get(number, launch.kernelName) == launch.kernelName
                else len(kernels)
            )
            kernels[key], grids[key] = launch.kernelName, _grid(launch)
            try:
                _collect(found, file, launch, Place(rank, launch=key))
            except IndexError as error:
                raise ForeignFormatError(
                    f"{path}: {launch.kernelName!r} names an entry of a table that is not there; "
                    "the file is damaged"
                ) from error
    events = found.events(
        files[0],
        kernels=kernels,
        grids=grids,
        categories={LIFETIME + kernel: Category.OTHER for kernel in kernels.values()},
        taken={
            "rank": "the order of the files",
            "block": "ctaId, x first",
            "warp": "warpId",
            "launch": "the order of launches",
            "processor": "smId",
            "clock": "ns, in steps of 32",
        },
    )
    return replace(events, tick_ns=STEP_NS)


def _grid(launch: _Launch) -> tuple[int, int]:
    num_blocks = launch.gridDimX * launch.gridDimY * launch.gridDimZ
    threads = launch.blockDimX * launch.blockDimY * launch.blockDimZ
    return (num_blocks, threads) if 0 < num_blocks < 1 << 31 and 0 < threads < 1 << 31 else (0, 0)


def _collect(found: Collector, file: _File, launch: _Launch, place: Place) -> None:
    def at(idx: int, *, is_warp: bool = True) -> Place:
        location = file.location_table[_checked(idx)]
        x, y, z = location.cta_id
        block = x + launch.gridDimX * (y + launch.gridDimY * z)
        warp = location.warp_id if is_warp else -1
        return place._replace(block=block, warp=warp, hw_id=location.sm_id)

    for life in launch.warpLifetimes:
        found.span(
            at(life.loc_idx),
            LIFETIME + launch.kernelName,
            life.start_ts,
            life.end_ts - life.start_ts,
        )
    for marker in launch.markers:
        name = file.string_table[_checked(marker.marker_name_idx)]
        found.mark(at(marker.loc_idx), name, marker.timestamp)
    for each in launch.ranges:
        name = file.string_table[_checked(each.range_name_idx)]
        # A range of several warps is one of their block.
        is_warp = each.range_scope == _OF_ONE_WARP
        for idx in each.warp_loc_idxs if is_warp else each.warp_loc_idxs[:1]:
            where = at(idx, is_warp=is_warp)
            found.span(where, name, each.start_ts, each.end_ts - each.start_ts)
            for inner in each.internal_events:
                found.mark(where, f"{name}/{inner.event_id}", inner.timestamp)


def _checked(idx: int) -> int:
    if idx < 0:
        raise IndexError(idx)
    return idx


def _sniff(sample: Sample) -> bool:
    is_ours = sample.has("locationTable") or sample.has("kernelName", "gridDimX")
    return is_ours or sample.has("smId", "tpcId")


FORMAT: Final = Format(_read, _sniff, takes_many=True)
