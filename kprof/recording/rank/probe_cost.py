"""Measures what recording costs on this device: as many tracks as a full launch has write empty
spans.

Runs once when a recorder is created and takes about a millisecond (`ProbeCost.took_ms`). The first
time on a machine its kernel is compiled, like that of the clock calibration.
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kprof import abi
from kprof.capture.manifest import ProbeCost
from kprof.devices.build import BuildOptions, error_text, load_library
from kprof.devices.memory import allocate
from kprof.devices.targets import target_of_device
from kprof.errors import ClockError
from kprof.recording.arenas.arena import Arena

if TYPE_CHECKING:
    from kprof.capture.manifest import ClockInfo

_SOURCE: Final = Path(__file__).parents[2] / "kernels" / "probe_cost.hip"
# Four chunks per track, so that the mean includes refills.
_NUM_PAIRS: Final = 4 * abi.RECORDS_PER_CHUNK
_ELAPSED_BYTES: Final = 16
# The first launch loads the kernel and wakes the device.
_NUM_LAUNCHES: Final = 3


def measure_probe_cost(device: str, clock: ClockInfo) -> ProbeCost:
    """Ns per start/stop pair on `device`, its cycle rate, and the duration of an empty span.

    Raises ClockError.
    """
    begin_s = time.perf_counter()
    library = load_library(_SOURCE, BuildOptions(target_of_device(device)))
    pointer, word = ctypes.c_void_p, ctypes.c_uint32
    library.kprof_probe_empty_spans.argtypes = [pointer, word, ctypes.c_char_p, pointer]
    num_tracks = int(library.kprof_probe_num_tracks())
    arena = Arena(abi.ArenaGeometry.for_chunks(5 * num_tracks).size_bytes, device)
    memory = allocate(num_tracks * _ELAPSED_BYTES, device)
    for _ in range(_NUM_LAUNCHES):
        arena.reset(arena.read()[0])
        buffer = arena.launch_buffer(0, 0, 0).packed()
        if error := library.kprof_probe_empty_spans(memory.address, _NUM_PAIRS, buffer, None):
            text = error_text(library, error)
            raise ClockError(f"the kernel that measures the probe failed: {text}; run kprof doctor")
        elapsed = memory.read(0, memory.size_bytes).view(np.uint64).reshape(-1, 2).copy()
    ns_per_tick = 1e9 / clock.ticks_per_second
    elapsed_ns = elapsed[:, 0].astype(np.float64) * ns_per_tick
    return ProbeCost(
        pair_ns=float(np.median(elapsed_ns)) / _NUM_PAIRS,
        empty_span_ns=_mean_duration_ticks(arena) * ns_per_tick,
        num_pairs=_NUM_PAIRS,
        num_tracks=num_tracks,
        cycles_per_second=float(elapsed[:, 1].sum() / elapsed_ns.sum()) * 1e9,
        took_ms=(time.perf_counter() - begin_s) * 1e3,
    )


def _mean_duration_ticks(arena: Arena) -> float:
    """The mean duration; a single span is shorter than one step of the clock."""
    _, chunks = arena.read()
    records = chunks.reshape(-1, abi.CHUNK_BYTES)[:, abi.CHUNK_HEADER_BYTES :]
    records = np.ascontiguousarray(records).view(abi.RECORD).reshape(-1)
    written = records[records["start_and_region"] != 0]
    return float(written["duration_ticks"].mean()) if len(written) else 0.0
