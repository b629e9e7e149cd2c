"""The two kernels with all that they need on one GPU, how launches are timed, and what each scheme recorded."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import kprof.triton as kp
from benchmarks.probe_overhead.bench import NUM_TOKENS, TOKEN_BYTES, decoded
from benchmarks.triton_overhead.kernels import (
    DISTRIBUTED,
    KPROF,
    PLAIN,
    PROTON,
    copy,
    matmul,
    regions,
)
from instrumented_kernels.queued_time import queued_us
from kprof import abi
from kprof.clocks.calibration import measure_clock
from kprof.recording.arenas.arena import Arena
from kprof.recording.decoding.decode import Decoder

if TYPE_CHECKING:
    import pandas as pd

ROW_WORDS = TOKEN_BYTES // 4
ROW_BLOCK = 1 << math.ceil(math.log2(ROW_WORDS))
MATMUL_SIZE = 4096
TILE = {"M": 128, "N": 256, "K": 64}
# Of a program.
EVENTS_OF_MATMUL = 2
NUM_WARPS = 8
RECORD_BYTES_OF_DISTRIBUTED = 8
Launch = Callable[[], object]


@dataclass(frozen=True)
class Scheme:
    """A way to record.

    `is_claimed`: every chunk is taken with an atomic, none is reserved by the host. `is_bounded`: the
    kernel says how many events a program has at most.
    """

    number: int
    is_claimed: bool = False
    is_bounded: bool = True


SCHEMES = {
    "none": Scheme(PLAIN),
    "kprof": Scheme(KPROF),
    "kprof, no chunk reserved": Scheme(KPROF, is_claimed=True),
    "kprof, without at_most": Scheme(KPROF, is_bounded=False),
    "Triton-distributed's scheme": Scheme(DISTRIBUTED),
}


class TritonBench:
    """Rows to copy, matrices to multiply, and an arena."""

    def __init__(self, device: str, arena: Arena) -> None:
        self.device = device
        # One for each way to get chunks: an arena that was opened to claims has nothing left to
        # reserve.
        self.reserving, self.claiming = arena, Arena(arena.geometry.size_bytes, device)
        self.arena = arena
        self.clock = measure_clock(device)
        self.num_sms = torch.cuda.get_device_properties(device).multi_processor_count
        self.source = torch.randint(
            0, 1 << 30, (NUM_TOKENS, ROW_WORDS), dtype=torch.int32, device=device
        )
        self.target = torch.zeros_like(self.source)
        shape = MATMUL_SIZE, MATMUL_SIZE
        self.a, self.b = (
            torch.randn(shape, device=device, dtype=torch.float16) / 8 for _ in range(2)
        )
        self.c = torch.zeros(shape, device=device, dtype=torch.float16)
        self.slots = torch.zeros(1 << 20, dtype=torch.int64, device=device)

    def copy(self, scheme: Scheme, num_programs: int) -> Launch:
        """Prepares a launch of the copy."""
        prof = self.buffer(scheme, num_programs)
        rows_per_program = -(-NUM_TOKENS // num_programs)
        at_most = rows_per_program if scheme.is_bounded else None
        return lambda: copy[(num_programs,)](
            self.target, self.source, NUM_TOKENS, ROW_WORDS, prof, self.slots, 2 * rows_per_program,
            SCHEME=scheme.number, BLOCK=ROW_BLOCK, AT_MOST=at_most, num_warps=NUM_WARPS,
        )  # fmt: skip

    def matmul(self, scheme: Scheme) -> Launch:
        """Prepares a launch of the matmul."""
        grid = MATMUL_SIZE // TILE["M"], MATMUL_SIZE // TILE["N"]
        prof = self.buffer(scheme, grid[0] * grid[1])
        size = MATMUL_SIZE
        at_most = EVENTS_OF_MATMUL if scheme.is_bounded else None
        return lambda: matmul[grid](
            self.a, self.b, self.c, size, size, prof, self.slots, 4,
            SCHEME=scheme.number, IN_LOOP=False, AT_MOST=at_most, num_warps=NUM_WARPS, num_stages=3,
            **TILE,
        )  # fmt: skip

    def buffer(self, scheme: Scheme, num_programs: int) -> kp.Buffer | None:
        """What Recorder.launch would hand out."""
        if scheme.number != KPROF:
            return None
        self.arena = self.claiming if scheme.is_claimed else self.reserving
        launch = self.arena.launch_buffer(0, num_programs, tracks_per_block=not scheme.is_claimed)
        is_reserved = launch.first_chunk != abi.NO_CHUNK
        assert is_reserved != scheme.is_claimed, "the arena has room for all first chunks"
        return kp.pack(launch, regions)

    def reset(self) -> None:
        """Empty the arenas and the slots."""
        for arena in (self.reserving, self.claiming):
            arena.reset(arena.state())
        self.slots.zero_()

    def decoded(self) -> tuple[pd.DataFrame, Decoder, float]:
        """All events of the last scheme since the last reset, the counts, and bytes per event."""
        events, decoder, num_bytes = decoded(self.arena, self.clock, regions.table)
        return events, decoder, num_bytes / max(1, len(events))


def records_of_kprof(bench: TritonBench, launch: Launch) -> dict[str, object]:
    """What one launch recorded."""
    torch.cuda.synchronize()
    elapsed_us = queued_us(launch)
    events, decoder, bytes_per_event = bench.decoded()
    end_ns = (events["start_ns"] + events["duration_ns"]).max()
    return {
        "events": len(events),
        "distinct payloads": int(events["payload"].nunique()),
        "lost": decoder.tally.counts.dropped,
        "bytes_per_event": round(bytes_per_event, 1),
        "processors": int(events["hw_id"].nunique()),
        "first to last event, of the launch": round(
            float(end_ns - events["start_ns"].min()) / 1e3 / elapsed_us, 3
        ),
    }


def records_of_distributed(
    bench: TritonBench, launch: Launch, num_records: int
) -> dict[str, object]:
    """What one launch recorded in Triton-distributed's scheme: low word the tag, high word the clock's low 32 bits."""
    torch.cuda.synchronize()
    elapsed_us = queued_us(launch)
    slots = bench.slots.cpu()
    ticks = slots[slots != 0] >> 32 & 0xFFFF_FFFF
    return {
        "events": len(ticks) // 2,
        "lost": (num_records - len(ticks)) // 2,
        "bytes_per_event": 2 * RECORD_BYTES_OF_DISTRIBUTED,
        "first to last event, of the launch": round(
            float(ticks.max() - ticks.min()) / 1e3 / elapsed_us, 3
        ),
    }


def proton_scheme() -> Scheme:
    """Proton's intra-kernel mode, which records while a session of its own is open."""
    return Scheme(PROTON)


def kernel_times_us(launch: Launch, name: str, repeats: int) -> list[float]:
    """Times of the kernel alone, as CUPTI measures them: Proton works on the host around each launch."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(repeats):
            launch()
        torch.cuda.synchronize()
    return [
        float(event.device_time)
        for event in profiler.events()
        if event.name == name and event.device_time > 0
    ]


def spans_in_trace(path: Path, scope: str) -> list[tuple[float, float]]:
    """Begin and end, in us, of every slice of a Chrome trace that is called `scope`."""
    events = json.loads(path.read_text())["traceEvents"]
    slices = [event for event in events if event.get("ph") == "X" and event["name"] == scope]
    return [(float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in slices]
