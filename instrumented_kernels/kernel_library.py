"""A compiled kernel source in Python: its variants, their launches, and how to launch a call.

A source is compiled twice: instrumented, and without kprof for launches that are not recorded. The
C++ side is device/launch_interface.h. Each kernel's plan defines the arguments and the memory of a
call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from instrumented_kernels.layouts import SHARED, Header, KernelLaunch, Layout, read_header
from kprof.devices.build import BuildOptions, load_library
from kprof.devices.targets import Target
from kprof.recording.launches.launch_buffer import NULL_BUFFER
from kprof.recording.rank.null_recorder import AnyRecorder
from kprof.recording.rank.process import process_records
from kprof.regions import RegionTable

# The buffer for launches that are not recorded.
NO_BUFFER: Final = NULL_BUFFER.packed()
_DEVICE_DIR: Final = Path(__file__).parent / "device"
# Architectures with instructions that those after them do not have, which code must ask for.
_WITH_ALL_INSTRUCTIONS: Final = {"sm_90": "sm_90a"}


@dataclass(frozen=True)
class Grid:
    """The blocks of one launch.

    `is_resident`: all blocks must run at once, because they wait for each other or for other ranks.
    `tracks_per_block` is that of this kernel, if it differs from its source's.
    """

    num_blocks: int
    warps_per_block: int
    warp_width: int
    is_resident: bool = True
    tracks_per_block: int | None = None

    @property
    def threads_per_block(self) -> int:
        """Warps per block times the target's warp width."""
        return self.warps_per_block * self.warp_width


def build_options(device: str) -> BuildOptions:
    """The build options for a device; on a GPU for exactly its architecture."""
    options = BuildOptions.for_device(device)
    arch = _WITH_ALL_INSTRUCTIONS.get(options.arch, options.arch)
    return replace(options, arch=arch, include_dirs=(_DEVICE_DIR,))


@dataclass(frozen=True)
class KernelSource:
    """A kernel's folder, with kernel.hip, regions.h and arguments.h.

    `tracks_per_block` is how many a recorder reserves; None means one per warp.
    """

    folder: Path
    tracks_per_block: int | None = None

    @cached_property
    def header(self) -> Header:
        """What arguments.h declares."""
        return read_header(self.folder / "arguments.h", SHARED.constants)

    @property
    def shape(self) -> type[Layout]:
        """What the memory of a plan or a call is made for."""
        return self.header.structs["Shape"]

    @property
    def call(self) -> type[Layout]:
        """The arguments of a call."""
        return self.header.structs["CallArguments"]


class KernelLibrary:
    """One kernel source, compiled and loaded. `functions` has the library's C functions.

    Raises kprof's TargetError or BuildError.
    """

    def __init__(self, source: KernelSource, options: BuildOptions) -> None:
        self.functions = functions = load_library(source.folder / "kernel.hip", options)
        _declare(functions, source.shape)
        self._kernel_launch = functions.kernel_launch
        assert functions.kernel_call_bytes() == ctypes.sizeof(source.call), source.folder
        self.variants = _names(functions.kernel_variant_name, functions.kernel_num_variants())
        # The names of the kernels that a call of a variant launches, in order.
        self.phases = [
            _names(partial(functions.kernel_phase_name, idx), functions.kernel_num_phases(idx))
            for idx in range(len(self.variants))
        ]
        self.warp_width = int(functions.kernel_warp_width())
        self.num_processors = int(functions.kernel_num_processors())
        self.ticks_per_second = int(functions.kernel_ticks_per_second())

    def fits_shared_memory(self, variant_idx: int) -> bool:
        """Whether the device has the shared memory that a block of this variant is given."""
        num_bytes = self.functions.kernel_shared_bytes(variant_idx)
        return bool(num_bytes <= self.functions.kernel_max_shared_bytes())

    def grid(self, variant_idx: int, num_blocks: int, warps_per_block: int) -> Grid:
        """A grid that can be resident at once. Raises ValueError if it cannot."""
        grid = Grid(num_blocks, warps_per_block, self.warp_width)
        limit = self.max_resident_blocks(variant_idx, grid.threads_per_block)
        if not 1 <= num_blocks <= limit:
            raise ValueError(
                f"a grid of {num_blocks} blocks of {grid.threads_per_block} threads cannot be "
                f"resident at once (at most {limit}), and blocks that wait for each other must be; "
                "use a smaller grid"
            )
        return grid

    def independent_grid(
        self, num_blocks: int, warps_per_block: int, tracks_per_block: int | None = None
    ) -> Grid:
        """A grid of any size, for blocks that wait for nothing."""
        return Grid(num_blocks, warps_per_block, self.warp_width, False, tracks_per_block)

    def max_resident_blocks(self, variant_idx: int, threads_per_block: int) -> int:
        """The largest grid whose blocks all run at once, in every launch of the variant."""
        return int(self.functions.kernel_max_resident_blocks(variant_idx, threads_per_block))

    def run(self, launches: LaunchSequence, first: int, count: int) -> None:
        """Launch a part of a sequence. Raises RuntimeError if the device refuses it."""
        error = self._kernel_launch(launches.addresses[first], count)
        if error:
            text = self.functions.kernel_error_text(error).decode()
            raise RuntimeError(f"{launches.names[first]} could not be launched: {text}")


class KernelBuilds:
    """Both builds of one kernel source: `plain`, without kprof, and `instrumented`.

    `load` compiles and loads one of them. Each is loaded when it is first needed. A process that
    records loads both at once, in parallel, so that no call compiles while its peers wait for it.
    On the CPU target one build serves as both, so that sanitizers and schedules see all of the
    code.
    """

    def __init__(
        self, load: Callable[[BuildOptions], KernelLibrary], options: BuildOptions
    ) -> None:
        self._load, self._options = load, options
        if process_records():
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda build: getattr(self, build), ("plain", "instrumented")))

    @cached_property
    def plain(self) -> KernelLibrary:
        """The build for launches that are not recorded."""
        if self._options.target is Target.CPU:
            return self.instrumented
        without_kprof = (*self._options.defines, ("KPROF_ENABLED", "0"))
        return self._load(replace(self._options, defines=without_kprof))

    @cached_property
    def instrumented(self) -> KernelLibrary:
        """The build for recorded launches."""
        return self._load(self._options)

    def max_resident_blocks(self, variant_idx: int, threads_per_block: int) -> int:
        """The largest grid whose blocks all run at once, with the build that this process uses."""
        builds = [self.plain, self.instrumented] if process_records() else [self.plain]
        return min(build.max_resident_blocks(variant_idx, threads_per_block) for build in builds)


@dataclass(frozen=True)
class Launch:
    """One launch of a call: a phase of a variant. `call` may be changed between launches."""

    variant_idx: int
    phase_idx: int
    call: Layout
    grid: Grid


class LaunchSequence:
    """The launches of one call, ready to run repeatedly.

    If nothing is recorded, one step launches them all.
    """

    def __init__(
        self,
        builds: KernelBuilds,
        launches: Sequence[Launch],
        regions: RegionTable,
        tracks_per_block: int | None,
    ) -> None:
        self.launches = tuple(launches)
        self._num_launches = len(launches)
        plain = builds.plain
        self.names = [plain.phases[each.variant_idx][each.phase_idx] for each in launches]
        self._builds, self._plain = builds, plain
        self._regions, self._tracks_per_block = regions, tracks_per_block
        self._stream: int | None = None
        self._arguments = (KernelLaunch * len(launches))(*map(_arguments, launches))
        size_bytes = ctypes.sizeof(KernelLaunch)
        begin = ctypes.addressof(self._arguments)
        self.addresses = [begin + i * size_bytes for i in range(len(launches))]

    @cached_property
    def instrumented(self) -> KernelLibrary:
        """The launches of the instrumented build.

        Raises ValueError if a grid cannot be resident, because that build needs more registers.
        """
        library = self._builds.instrumented
        for each in self.launches:
            if not each.grid.is_resident:
                continue
            library.grid(each.variant_idx, each.grid.num_blocks, each.grid.warps_per_block)
        return library

    def run(self, recorder: AnyRecorder, stream: int | None, schedule_seed: int = 0) -> None:
        """Launch all, each with the build that its buffer requires.

        Raises RuntimeError if the device refuses one, ValueError if a grid is too large for the
        instrumented build.
        """
        if stream != self._stream or schedule_seed:
            self._stream = stream
            for idx, arguments in enumerate(self._arguments):
                arguments.stream = stream
                arguments.schedule_seed = schedule_seed and schedule_seed + idx
        if recorder.is_recording:
            for idx in range(len(self.launches)):
                self._run_recorded(idx, recorder)
        elif self._num_launches:
            self._plain.run(self, 0, self._num_launches)

    def _run_recorded(self, idx: int, recorder: AnyRecorder) -> None:
        grid = self.launches[idx].grid
        tracks_per_block = grid.tracks_per_block or self._tracks_per_block
        buffer = recorder.launch(
            self.names[idx],
            self._regions,
            num_blocks=grid.num_blocks,
            threads_per_block=grid.threads_per_block,
            tracks_per_block=tracks_per_block or grid.warps_per_block,
        )
        # A recorder may count launches and record nothing.
        if not buffer.arena:
            self._plain.run(self, idx, 1)
            return
        instrumented, arguments = self.instrumented, self._arguments[idx]
        arguments.buffer = buffer.packed()
        try:
            instrumented.run(self, idx, 1)
        finally:
            arguments.buffer = NO_BUFFER


def _arguments(launch: Launch) -> Layout:
    return KernelLaunch(
        call=ctypes.addressof(launch.call),
        buffer=NO_BUFFER,
        variant=launch.variant_idx,
        phase=launch.phase_idx,
        num_blocks=launch.grid.num_blocks,
        threads_per_block=launch.grid.threads_per_block,
    )


def _names(name_of: Callable[[int], bytes], number: int) -> tuple[str, ...]:
    return tuple(name_of(idx).decode() for idx in range(number))


def _declare(functions: Any, shape: type[Layout]) -> None:
    for name in ("call_bytes", "ticks_per_second", "heap_bytes", "workspace_bytes"):
        getattr(functions, f"kernel_{name}").restype = ctypes.c_uint64
    for name in ("shared_bytes", "max_shared_bytes"):
        getattr(functions, f"kernel_{name}").restype = ctypes.c_uint32
    for name in ("variant_name", "phase_name", "error_text"):
        getattr(functions, f"kernel_{name}").restype = ctypes.c_char_p
    for name in ("heap_bytes", "workspace_bytes"):
        getattr(functions, f"kernel_{name}").argtypes = [ctypes.POINTER(shape)]
    functions.kernel_launch.argtypes = [ctypes.c_void_p, ctypes.c_int]
