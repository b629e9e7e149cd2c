"""The kernels of kernel.hip with all that they need on one GPU, and how their launches are timed."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from kprof import abi
from kprof.capture.manifest import ClockInfo, RankInfo
from kprof.clocks.calibration import measure_clock
from kprof.devices.build import BuildOptions, load_library
from kprof.devices.memory import RegisteredMemory
from kprof.devices.targets import target_of_device
from kprof.recording.arenas.arena import Arena
from kprof.recording.decoding.decode import Decoder
from kprof.recording.launches.launch_buffer import LaunchBuffer
from kprof.recording.launches.region_ids import RegionIds
from kprof.recording.launches.wanted import Wanted
from kprof.regions import RegionTable

if TYPE_CHECKING:
    import pandas as pd

NUM_TOKENS = 8192
TOKEN_BYTES = 14 * 1024
VECTOR_BYTES = 16
THREADS = 256
TIGHT_WARPS_PER_SM = 8
TIGHT_EVENTS = 2000
ARENA_BYTES = 256 << 20
CLOCKS = {"realtime": "0", "cycles": "1"}
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Scheme:
    """One way to write events: its number in kernel.hip, and how it is run."""

    number: int
    clock: str = "realtime"
    is_null: bool = False
    is_per_block: bool = False
    is_arena_full: bool = False
    is_captured: bool = False
    num_wanted_blocks: int = 0  # 0: all
    is_in_host: bool = False


SCHEMES = {
    "none": Scheme(0, is_null=True),
    "null buffer, per warp": Scheme(1, is_null=True),
    "kprof per block": Scheme(2, is_per_block=True),
    "kprof per warp": Scheme(1),
    "kprof per warp, clock cycles": Scheme(1, "cycles"),
    "kprof per warp, moment complete": Scheme(4),
    "kprof per warp, arena full": Scheme(1, is_arena_full=True),
    "kprof per warp, as captured in a graph": Scheme(1, is_captured=True),
    "kprof per warp, blocks 0-7 only": Scheme(1, num_wanted_blocks=8),
    "blocks 0-7 open tracks and record nothing": Scheme(5, num_wanted_blocks=8),
    "blocks 0-7 read two clocks per event, without a track": Scheme(6, is_null=True),
    "kprof per warp, all blocks left out": Scheme(1, num_wanted_blocks=-1),
    "kprof per warp, blocks 0-7 only, as captured in a graph": Scheme(
        1, is_captured=True, num_wanted_blocks=8
    ),
    "kprof per warp, arena in host memory": Scheme(1, is_in_host=True),
    "classic": Scheme(3, is_null=True),
}
# Also measured by themselves. With all schemes in turns a kernel runs once in 15, and other code and data are in the
# caches when it does.
FILTER_SCHEMES = (
    "none",
    "null buffer, per warp",
    "kprof per warp, blocks 0-7 only",
    "blocks 0-7 open tracks and record nothing",
    "kprof per warp, all blocks left out",
)
# The key of that arena.
_IN_HOST = -2


def _host_memory(device: str) -> RegisteredMemory:
    """Memory as `--arena host` has it."""
    content = np.frombuffer(mmap.mmap(-1, ARENA_BYTES), dtype=np.uint8)
    return RegisteredMemory.of(content, device)


class Bench:
    """Libraries for both clocks, an arena, the rows and the classic scheme's buffer."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.libraries = {name: _load(device, define) for name, define in CLOCKS.items()}
        self.clock = measure_clock(device)
        self.num_sms = torch.cuda.get_device_properties(device).multi_processor_count
        # One chunk for all tracks: what they drop is only counted.
        self.full_arena = Arena(abi.CHUNKS_OFFSET + abi.CHUNK_BYTES, device)
        # By the number of wanted blocks; the one block of -1 is in no grid.
        wanted = {0: Wanted(), 8: Wanted(blocks=tuple(range(8))), -1: Wanted(blocks=(1 << 18,))}
        self.arenas = {key: Arena(ARENA_BYTES, device, each) for key, each in wanted.items()}
        self.arenas[_IN_HOST] = Arena(ARENA_BYTES, device, memory=_host_memory(device))
        self.arena = self.arenas[0]
        self.source = torch.randint(
            0, 255, (NUM_TOKENS * TOKEN_BYTES,), dtype=torch.uint8, device=device
        )
        self.target = torch.zeros_like(self.source)
        num_events = self.num_sms * TIGHT_WARPS_PER_SM * TIGHT_EVENTS
        self.classic = torch.zeros(1 + 4 * num_events, dtype=torch.int64, device=device)

    def reset(self) -> None:
        """Empty the arenas and the classic scheme's buffer."""
        for arena in self.arenas.values():
            arena.reset(arena.state())
        self.classic[:1].zero_()

    def copy(self, scheme: Scheme, blocks_per_sm: int) -> Callable[[], None]:
        """Prepares a launch of the token copy."""
        blocks = blocks_per_sm * self.num_sms
        buffer = self.buffer(scheme, blocks, THREADS // 32)
        return lambda: _check(
            self.libraries[scheme.clock].probe_token_copy(
                scheme.number, blocks, THREADS, self.target.data_ptr(), self.source.data_ptr(),
                NUM_TOKENS, TOKEN_BYTES // VECTOR_BYTES, self.classic.data_ptr(),
                buffer, 0,
            )
        )  # fmt: skip

    def tight(self, scheme: Scheme, is_unrolled: bool) -> Callable[[], None]:
        """Prepares a launch of the loop of nothing but events, by four or one at a time."""
        buffer = self.buffer(scheme, self.num_sms, TIGHT_WARPS_PER_SM)
        return lambda: _check(
            self.libraries[scheme.clock].probe_tight_loop(
                scheme.number, is_unrolled, self.num_sms, 32 * TIGHT_WARPS_PER_SM, self.target.data_ptr(),
                TIGHT_EVENTS, self.classic.data_ptr(), buffer, 0,
            )
        )  # fmt: skip

    def passes(self, clock: str, num_passes: int) -> Callable[[], None]:
        """Launches a copy of all rows, `num_passes` times over, two blocks on every SM."""
        blocks = 2 * self.num_sms
        return lambda: _check(
            self.libraries[clock].probe_passes(
                blocks, THREADS, self.target.data_ptr(), self.source.data_ptr(),
                NUM_TOKENS * TOKEN_BYTES // VECTOR_BYTES, num_passes,
                self.buffer(Scheme(2, clock, is_per_block=True), blocks, 1), 0,
            )
        )  # fmt: skip

    def spans(self, clock: str, span_steps: torch.Tensor) -> None:
        """Runs spans of so many steps of dependent arithmetic in one warp on every SM."""
        steps = span_steps.to(torch.int32).to(self.device)
        _check(
            self.libraries[clock].probe_spans(
                self.num_sms, 32, self.target.data_ptr(), len(steps), steps.data_ptr(),
                self.buffer(Scheme(1, clock), self.num_sms, 1), 0,
            )
        )  # fmt: skip
        torch.cuda.synchronize()

    def readings(self, num_readings: int) -> torch.Tensor:
        """Real time and cycles, read one after the other in one warp on every SM; (SMs, num_readings, 2)."""
        shape = self.num_sms, num_readings, 2
        out = torch.zeros(shape, dtype=torch.int64, device=self.device)
        for _ in range(2):  # the first launch loads the kernel
            _check(
                self.libraries["cycles"].probe_readings(
                    self.num_sms, 32, out.data_ptr(), num_readings, 0
                )
            )
        return out.cpu()

    def buffer(self, scheme: Scheme, num_blocks: int, warps_per_block: int) -> bytes:
        """What Recorder.launch would hand out: the first chunk of every track reserved.

        Except in graphs, where tracks look at the switches and claim.
        """
        if scheme.is_null:
            return LaunchBuffer(0, 0).packed()
        if scheme.is_arena_full:
            return LaunchBuffer(self.full_arena.address, 0).packed()
        arena = self.arenas[_IN_HOST if scheme.is_in_host else scheme.num_wanted_blocks]
        if scheme.is_captured:
            return arena.switched_buffer(0).packed()
        tracks_per_block = 1 if scheme.is_per_block else warps_per_block
        if scheme.num_wanted_blocks:
            return arena.filtered_buffer(0, num_blocks, tracks_per_block).packed()
        return arena.launch_buffer(0, num_blocks, tracks_per_block).packed()

    def decoded(self) -> tuple[pd.DataFrame, Decoder]:
        """All events since the last reset, with all counts; empties the arena."""
        table = RegionTable.from_header(_FOLDER / "regions.h")
        events, decoder, _ = decoded(self.arena, self.clock, table)
        self.arena.reset(self.arena.state())
        return events, decoder


def decoded(
    arena: Arena, clock: ClockInfo, table: RegionTable
) -> tuple[pd.DataFrame, Decoder, int]:
    """All events of an arena, the counts, and how many bytes they take."""
    import pyarrow as pa

    ids = RegionIds()
    ids.table_of_launch[0] = ids.table_idx(table)
    decoder = Decoder(RankInfo(0, clock=clock), ids)
    state, chunks = arena.read()
    events = pa.concat_tables(decoder.decode(state, chunks)).to_pandas()
    return events, decoder, len(chunks)


def _load(device: str, cycles_define: str) -> ctypes.CDLL:
    options = BuildOptions(
        target_of_device(device), "", (("KPROF_CLOCK_CYCLES", cycles_define),), (_FOLDER,)
    )
    library = load_library(_FOLDER / "kernel.hip", options)
    number, pointer, whole = ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int
    library.probe_token_copy.argtypes = [
        whole, whole, whole, pointer, pointer, number, number, pointer, ctypes.c_char_p, pointer,
    ]  # fmt: skip
    library.probe_tight_loop.argtypes = [
        whole, whole, whole, whole, pointer, number, pointer, ctypes.c_char_p, pointer,
    ]  # fmt: skip
    library.probe_readings.argtypes = [whole, whole, pointer, number, pointer]
    library.probe_passes.argtypes = [
        whole, whole, pointer, pointer, number, number, ctypes.c_char_p, pointer,
    ]  # fmt: skip
    library.probe_spans.argtypes = [
        whole, whole, pointer, number, pointer, ctypes.c_char_p, pointer,
    ]  # fmt: skip
    return library


def _check(error: int) -> None:
    if error:
        raise RuntimeError(f"launch failed with {error}")
