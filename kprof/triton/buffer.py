"""The buffer that a Triton kernel records into: four numbers, and for the compiler the name of the
build.

Triton specialises a kernel for integer arguments that are 1, divisible by 16, or need 64 bits. So
every number is passed as an odd 64-bit one:

    62   61        33 32         1  0
     1 |  high (29)  |  low (32)  | 1
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import triton
import triton.language as tl

from kprof.devices import captures
from kprof.devices.build import DELAYS_VARIABLE
from kprof.devices.on_use import torch
from kprof.errors import RecorderError
from kprof.recording.launches.launch_buffer import LaunchBuffer, new_tuple
from kprof.recording.rank.null_recorder import AnyRecorder
from kprof.recording.rank.process import process_records
from kprof.recording.rank.process import recorder as process_recorder
from kprof.regions import RegionTable, without_places
from kprof.triton.compiled import BUILD, look_at_compilations
from kprof.triton.regions import Regions
from kprof.triton.tuning import leave_tuning_alone

_LOW_BITS: Final = 32
_HIGH_BITS: Final = 29
# Where the options of a launch begin, above the number of cursors.
OPTIONS_SHIFT: Final = 8
# Where the first block begins in the options.
FIRST_BLOCK_SHIFT: Final = 2
_HIGH_SHIFT: Final = _LOW_BITS + 1
_TAG: Final = 1 << 62 | 1

# The first launch, which opens the recorder, may come while another thread captures a graph.
if process_records():
    captures.watch(torch.cuda.CUDAGraph)


class Buffer(NamedTuple):
    """One launch's view of the arena. Made by `buffer`; a kernel hands it to `open_track`."""

    arena: int  # its address + 1: addresses are multiples of 1024
    launch_and_cursors: (
        int  # low: the launch's number; high: cursors, options from bit 8, first block from 10
    )
    first_and_tracks: int  # low: the first reserved chunk; high: reserved tracks per program
    reserved_and_slice: int  # low: how many chunks are reserved; high: chunks per cursor
    build: Any  # tl.constexpr of a BuildKey's name: part of the key of Triton's caches


@dataclass(frozen=True)
class BuildKey:
    """What instrumented code depends on beside its own source. Triton's caches see its name."""

    table: RegionTable
    num_warps: int
    takes_delays: bool

    @property
    def name(self) -> str:
        """Differs whenever the compiled code may differ."""
        text = f"{source_digest()} {msgspec.json.encode(self.table).decode()} {self.num_warps}"
        text += " delays" * self.takes_delays
        return f"{BUILD}{hashlib.sha256(text.encode()).hexdigest()[:32]}"


_builds: dict[str, BuildKey] = {}
_names: dict[tuple[int, int, bool], tuple[RegionTable, tl.constexpr]] = {}


def build_of(name: str) -> BuildKey:
    """The build of a buffer, by its name."""
    return _builds[name]


def buffer(
    kernel: str,
    grid: int | Sequence[int] | None,
    regions: Regions,
    *,
    num_warps: int = 0,
    tracks_per_program: int = 1,
    recorder: AnyRecorder | None = None,
) -> Buffer | None:
    """The buffer for the next launch of `kernel` on `grid`, or None if nothing is recorded.

    With `None`, calls of kprof.triton in the kernel compile to nothing. `grid` None (a grid that
    autotuning decides) reserves no chunks: every track then takes its first one with an atomic.
    `num_warps`, if given, is checked when the kernel is compiled. `recorder` is this process's for
    the current device unless given. Raises RecorderError for a grid that is not numbers.
    """
    active = process_recorder(device=_device()) if recorder is None else recorder
    num_programs = grid if type(grid) is int else _num_programs(grid)
    launch = active.launch(
        kernel,
        regions.table,
        num_blocks=num_programs,
        threads_per_block=num_warps * _warp_size() if num_warps else 0,
        tracks_per_block=tracks_per_program if num_programs else 0,
    )
    return pack(launch, regions, num_warps)


def pack(launch: LaunchBuffer, regions: Regions, num_warps: int = 0) -> Buffer | None:
    """The argument for a kernel from what `Recorder.launch` returned; None for a null buffer."""
    if launch.arena == 0:
        return None
    _look_at_triton()
    return new_tuple(Buffer, (*words_of(launch), build_name(regions.table, num_warps)))


@cache
def _look_at_triton() -> None:
    leave_tuning_alone(Buffer)
    look_at_compilations()


Words = tuple[int, int, int, int]


def words_of(launch: LaunchBuffer) -> Words:
    """The numbers of a Buffer. Calls nothing, because this runs before every launch."""
    arena, number, first, tracks, reserved, per_cursor, cursors, options, first_block = launch
    high = cursors | options << OPTIONS_SHIFT | first_block << OPTIONS_SHIFT + FIRST_BLOCK_SHIFT
    assert (number | first | reserved) >> _LOW_BITS == 0
    assert (high | tracks | per_cursor) >> _HIGH_BITS == 0
    return (
        arena | 1,
        _TAG | number << 1 | high << _HIGH_SHIFT,
        _TAG | first << 1 | tracks << _HIGH_SHIFT,
        _TAG | reserved << 1 | per_cursor << _HIGH_SHIFT,
    )


def build_name(table: RegionTable, num_warps: int) -> tl.constexpr:
    """The name of a build. Cached by identity, because this runs before every launch."""
    key = id(table), num_warps, takes_delays()
    found = _names.get(key)
    if found is None:
        # Moving a line compiles nothing anew.
        build = BuildKey(without_places(table), *key[1:])
        _builds[build.name] = build
        found = _names[key] = table, tl.constexpr(build.name)
    return found[1]


@cache
def takes_delays() -> bool:
    """Whether `kprof verify` has started this process: kernels then take delays."""
    return bool(os.environ.get(DELAYS_VARIABLE))


def _num_programs(grid: int | Sequence[int] | None) -> int:
    if grid is None:
        return 0
    sizes = (grid,) if isinstance(grid, int) else grid
    if callable(sizes) or not all(isinstance(size, int) for size in sizes):
        raise RecorderError(
            "the grid of kprof.triton.buffer() is not a number or a tuple of numbers; "
            "pass grid=None where autotuning decides it"
        )
    return prod(sizes)


def _device() -> str:
    return f"cuda:{torch.cuda.current_device()}" if _has_gpu() else "cpu"


@cache
def _has_gpu() -> bool:
    return not triton.knobs.runtime.interpret and torch.cuda.is_available()


@cache
def _warp_size() -> int:
    if triton.knobs.runtime.interpret:
        return 1
    return int(triton.runtime.driver.active.get_current_target().warp_size)


@cache
def source_digest() -> str:
    """A digest of our source: Triton's caches only see the source of @triton.jit functions, not the
    code that compiling them calls."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in [*sorted(folder.glob("*.py")), folder.parent / "abi.py"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
