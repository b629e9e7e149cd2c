"""Runs the clock calibration: ping-pong kernels between the reference rank and every other, over symmetric memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kprof.build import BuildOptions, load_library
from kprof.capture import ClockInfo
from kprof.clock import (
    DEFAULT_NUM_ROUNDS,
    OffsetSample,
    offset_from_rounds,
    step_from_readings,
    ticks_to_ns,
)
from kprof.errors import ClockError
from kprof.symmetric import SymmetricHeap
from kprof.targets import Target

if TYPE_CHECKING:
    from kprof.groups import Group

REFERENCE_RANK: Final = 0
_SOURCE: Final = Path(__file__).parent / "kernels" / "clock_pingpong.hip"
_NUM_STEP_READINGS: Final = 4096
_TIMEOUT_S: Final = 5
# Each pair of ranks has its own two flags, a cache line apart.
_FLAG_STRIDE_BYTES: Final = 128
_SOURCES_OF_TIME: Final = {
    Target.CPU: "CLOCK_MONOTONIC",
    Target.CUDA: "%globaltimer",
    Target.HIP: "s_memrealtime",
}


def load_calibration(target: Target) -> ctypes.CDLL:
    """The compiled ping-pong kernels of one target."""
    library = load_library(_SOURCE, BuildOptions(target))
    library.kprof_pingpong.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint64,
        ctypes.c_void_p,
    ]
    library.kprof_clock_steps.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p]
    library.kprof_ticks_per_second.restype = ctypes.c_uint64
    library.kprof_error_text.restype = ctypes.c_char_p
    return library


def measure_clock(target: Target) -> ClockInfo:
    """The clock that kernels of this target read: its name, rate and observed step."""
    library = load_calibration(target)
    ticks_per_second = float(library.kprof_ticks_per_second())
    readings = np.zeros(_NUM_STEP_READINGS, dtype=np.uint64)
    _check(library, library.kprof_clock_steps(readings.ctypes.data, len(readings), None))
    return ClockInfo(
        _SOURCES_OF_TIME[target], ticks_per_second, step_from_readings(readings, ticks_per_second)
    )


@dataclass
class Calibrator:
    """Flags in symmetric memory and the round number, kept from one calibration to the next. Creation is collective."""

    group: Group
    target: Target
    clock: ClockInfo
    num_rounds: int = DEFAULT_NUM_ROUNDS

    def __post_init__(self) -> None:
        self._library = load_calibration(self.target)
        self._heap = SymmetricHeap(self.group, self.group.world_size * _FLAG_STRIDE_BYTES)
        self._next_round = 1

    def run(self) -> dict[int, OffsetSample]:
        """One sample for every rank but the reference. Collective; raises ClockError when a rank does not answer."""
        rounds = self._exchange_flags()
        self._next_round += self.num_rounds
        everyone = self.group.all_gather(rounds)
        return {
            rank: offset_from_rounds(
                everyone[REFERENCE_RANK][rank], everyone[rank][rank][:, 1], self.clock.step_ns
            )
            for rank in range(self.group.world_size)
            if rank != REFERENCE_RANK
        }

    def _exchange_flags(self) -> dict[int, np.ndarray]:
        """The reference rank plays with one rank after the other; the others wait in a barrier, off the CPU."""
        rounds: dict[int, np.ndarray] = {}
        for rank in range(self.group.world_size):
            if rank == REFERENCE_RANK:
                continue
            if self.group.rank in (rank, REFERENCE_RANK):
                rounds[rank] = self._play(rank)
            self.group.barrier()
        return rounds

    def _play(self, rank: int) -> np.ndarray:
        """Rounds with one partner; (num_rounds, 2) int64 ns of this side's readings."""
        is_initiator = self.group.rank == REFERENCE_RANK
        peer = rank if is_initiator else REFERENCE_RANK
        offset = rank * _FLAG_STRIDE_BYTES
        ticks = np.zeros((self.num_rounds, 2), dtype=np.uint64)
        error = self._library.kprof_pingpong(
            self._heap.bases[self.group.rank] + offset,
            self._heap.bases[peer] + offset,
            ticks.ctypes.data,
            self.num_rounds,
            self._next_round,
            int(is_initiator),
            int(_TIMEOUT_S * self.clock.ticks_per_second),
            None,
        )
        _check(self._library, error)
        return ticks_to_ns(ticks.astype(np.int64), self.clock.ticks_per_second)


def _check(library: ctypes.CDLL, error: int) -> None:
    if error != 0:
        text = library.kprof_error_text(error).decode()
        raise ClockError(f"the clock calibration kernel failed: {text}; run kprof doctor")
