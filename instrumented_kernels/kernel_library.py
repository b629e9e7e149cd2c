"""A compiled kernel source as Python sees it: its variants, the launches each is made of, and how one is launched.

A source is compiled twice: instrumented, and as if kprof did not exist for launches that nobody records. The other side
is device/launch_interface.h. What a call is (its arguments, its memory) belongs to each kernel's plan.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kprof.devices.build import BuildOptions, load_library
from kprof.devices.gpu import current_stream as current_stream
from kprof.devices.targets import Target, arch_of_device, target_of_device
from kprof.recording.process import process_records
from kprof.recording.recorder import LaunchBuffer, NullRecorder, Recorder

if TYPE_CHECKING:
    from kprof.regions import RegionTable

# memory_layout::kMaxRanks of device/memory_layout.h.
MAX_RANKS: Final = 64
# What a launch gets that is not recorded.
NO_BUFFER: Final = LaunchBuffer(0, 0).packed()
_DEVICE_DIR: Final = Path(__file__).parent / "device"


@dataclass(frozen=True)
class Grid:
    """The blocks of one launch. All are resident at once, because blocks wait for each other and for other ranks."""

    num_blocks: int
    warps_per_block: int
    warp_width: int

    @property
    def threads_per_block(self) -> int:
        """Warps per block times the target's warp width."""
        return self.warps_per_block * self.warp_width


def build_options(device: str) -> BuildOptions:
    """How kernels here are built for a device; on a GPU for exactly its architecture."""
    target = target_of_device(device)
    return BuildOptions(target, arch_of_device(device), include_dirs=(_DEVICE_DIR,))


class _KernelLaunch(ctypes.Structure):
    """KernelLaunch of device/launch_interface.h."""

    _fields_ = [
        ("call", ctypes.c_void_p),
        ("buffer", ctypes.c_char_p),
        ("stream", ctypes.c_void_p),
        ("schedule_seed", ctypes.c_uint64),
        ("variant", ctypes.c_int),
        ("phase", ctypes.c_int),
        ("num_blocks", ctypes.c_int),
        ("threads_per_block", ctypes.c_int),
    ]


class KernelLibrary:
    """One kernel source, compiled and loaded. `call_type` is the ctypes mirror of its CallArguments.

    `functions` gives the library's own C functions. Raises TargetError or BuildError of kprof.
    """

    def __init__(
        self, source: Path, options: BuildOptions, call_type: type[ctypes.Structure]
    ) -> None:
        self.functions = load_library(source, options)
        _declare(self.functions)
        self._kernel_launch = self.functions.kernel_launch
        assert self.functions.kernel_call_bytes() == ctypes.sizeof(call_type), (
            f"CallArguments of {source} differ between C++ and Python"
        )
        self.variants: tuple[str, ...] = tuple(
            self.functions.kernel_variant_name(idx).decode()
            for idx in range(self.functions.kernel_num_variants())
        )
        self._phases = [
            tuple(
                self.functions.kernel_phase_name(variant, phase).decode()
                for phase in range(self.functions.kernel_num_phases(variant))
            )
            for variant in range(len(self.variants))
        ]
        self.warp_width = int(self.functions.kernel_warp_width())
        self.num_processors = int(self.functions.kernel_num_processors())
        self.ticks_per_second = int(self.functions.kernel_ticks_per_second())

    def variant_idx(self, name: str) -> int:
        """The number of a variant; raises ValueError for a name that is not known."""
        if name not in self.variants:
            raise ValueError(
                f"variant {name!r} is not known; choose one of {', '.join(self.variants)}"
            )
        return self.variants.index(name)

    def phases(self, variant_idx: int) -> tuple[str, ...]:
        """The names of the kernels that a call of this variant launches, in order."""
        return self._phases[variant_idx]

    def grid(self, variant_idx: int, num_blocks: int, warps_per_block: int) -> Grid:
        """A grid that can be resident at once; raises ValueError where it cannot."""
        grid = Grid(num_blocks, warps_per_block, self.warp_width)
        limit = self.max_resident_blocks(variant_idx, grid.threads_per_block)
        if not 1 <= num_blocks <= limit:
            raise ValueError(
                f"a grid of {num_blocks} blocks of {grid.threads_per_block} threads cannot be resident at once "
                f"(at most {limit}), and blocks that wait for each other must be; use a smaller grid"
            )
        return grid

    def max_resident_blocks(self, variant_idx: int, threads_per_block: int) -> int:
        """The largest grid of which all blocks run at the same time, over all launches of the variant."""
        return int(self.functions.kernel_max_resident_blocks(variant_idx, threads_per_block))

    def run(self, launch: PreparedLaunch) -> None:
        """Launch with the arguments as they stand; raises RuntimeError when the device refuses it."""
        error = self._kernel_launch(launch.address)
        if error:
            text = self.functions.kernel_error_text(error).decode()
            raise RuntimeError(f"{launch.name} could not be launched: {text}")


class KernelBuilds:
    """Both builds of one kernel source: `plain`, as if kprof did not exist, and `instrumented`.

    `load` compiles and loads one of them. Each is loaded when it is first needed; in a process that records both at
    once and in parallel, so that no call compiles while its peers wait for it. The CPU target has one build for both:
    there it matters that sanitizers and schedules see all of the code.
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
        """For launches that nobody records."""
        if self._options.target is Target.CPU:
            return self.instrumented
        without_kprof = (*self._options.defines, ("KPROF_ENABLED", "0"))
        return self._load(replace(self._options, defines=without_kprof))

    @cached_property
    def instrumented(self) -> KernelLibrary:
        """For launches that are recorded."""
        return self._load(self._options)

    def max_resident_blocks(self, variant_idx: int, threads_per_block: int) -> int:
        """The largest grid of which all blocks run at the same time, recorded too where this process records."""
        builds = [self.plain, self.instrumented] if process_records() else [self.plain]
        return min(build.max_resident_blocks(variant_idx, threads_per_block) for build in builds)

    def prepare(
        self, variant_idx: int, phase_idx: int, call: ctypes.Structure, grid: Grid
    ) -> PreparedLaunch:
        """One phase of a call, ready to be launched again and again; `call` may be changed in between."""
        return PreparedLaunch(self, variant_idx, phase_idx, call, grid)

    def launch(
        self,
        launch: PreparedLaunch,
        *,
        regions: RegionTable,
        recorder: Recorder | NullRecorder,
        stream: int | None,
        schedule_seed: int = 0,
        tracks_per_block: int | None = None,
    ) -> None:
        """Launch one phase of a call, by the build that its buffer asks for.

        Recorded per warp, unless `tracks_per_block` says otherwise. Raises RuntimeError when the device refuses it,
        ValueError when the grid is too large for the instrumented build.
        """
        library, arguments = self.plain, launch.arguments
        arguments.buffer = NO_BUFFER
        if recorder.is_recording:
            buffer = recorder.launch(
                launch.name,
                regions,
                num_blocks=launch.grid.num_blocks,
                threads_per_block=launch.grid.threads_per_block,
                tracks_per_block=tracks_per_block or launch.grid.warps_per_block,
            )
            # A recorder may count launches and record nothing.
            if buffer.arena:
                library = launch.instrumented
                arguments.buffer = buffer.packed()
        arguments.stream = stream
        arguments.schedule_seed = schedule_seed
        library.run(launch)


class PreparedLaunch:
    """All that a launch needs but the stream and the recorder: launching it again costs the host little."""

    def __init__(
        self,
        builds: KernelBuilds,
        variant_idx: int,
        phase_idx: int,
        call: ctypes.Structure,
        grid: Grid,
    ) -> None:
        self.name = builds.plain.phases(variant_idx)[phase_idx]
        self.grid = grid
        self.call = call
        self._builds, self._variant_idx = builds, variant_idx
        self.arguments = _KernelLaunch(
            ctypes.addressof(call),
            NO_BUFFER,
            None,
            0,
            variant_idx,
            phase_idx,
            grid.num_blocks,
            grid.threads_per_block,
        )
        self.address = ctypes.addressof(self.arguments)

    @cached_property
    def instrumented(self) -> KernelLibrary:
        """What records this launch, loaded; raises ValueError where the grid cannot be resident with more registers."""
        library = self._builds.instrumented
        library.grid(self._variant_idx, self.grid.num_blocks, self.grid.warps_per_block)
        return library


def _declare(functions: Any) -> None:
    functions.kernel_call_bytes.restype = ctypes.c_uint64
    functions.kernel_ticks_per_second.restype = ctypes.c_uint64
    for name in ("kernel_variant_name", "kernel_phase_name", "kernel_error_text"):
        getattr(functions, name).restype = ctypes.c_char_p
    functions.kernel_launch.argtypes = [ctypes.c_void_p]
