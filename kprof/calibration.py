"""Runs the clock calibration: ping-pong kernels between the reference rank and every other, over symmetric memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kprof.arena import allocate
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
from kprof.targets import Target, target_of_device

if TYPE_CHECKING:
    from kprof.groups import Group

REFERENCE_RANK: Final = 0
_SOURCE: Final = Path(__file__).parent / "kernels" / "clock_pingpong.hip"
_NUM_STEP_READINGS: Final = 4096
_TIMEOUT_S: Final = 5
_ROUND_BYTES: Final = 16
# Half a round trip between two cores or two GPUs of a host is below this.
_GOOD_BOUND_NS: Final = 2000
_MAX_PASSES: Final = 8
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


def measure_clock(device: str) -> ClockInfo:
    """The clock that kernels on this device read: its name, rate and observed step."""
    target = target_of_device(device)
    library = load_calibration(target)
    ticks_per_second = float(library.kprof_ticks_per_second())
    memory = allocate(_NUM_STEP_READINGS * 8, device)
    _check(library, library.kprof_clock_steps(memory.address, _NUM_STEP_READINGS, None))
    readings = memory.read(0, memory.size_bytes).view(np.uint64)
    return ClockInfo(
        _SOURCES_OF_TIME[target], ticks_per_second, step_from_readings(readings, ticks_per_second)
    )


@dataclass
class Calibrator:
    """Flags in symmetric memory and the round number, kept from one calibration to the next. Creation is collective."""

    group: Group
    device: str
    clock: ClockInfo
    num_rounds: int = DEFAULT_NUM_ROUNDS

    def __post_init__(self) -> None:
        self._library = load_calibration(target_of_device(self.device))
        self._heap = SymmetricHeap(
            self.group, self.group.world_size * _FLAG_STRIDE_BYTES, self.device
        )
        self._rounds = allocate(self.num_rounds * _ROUND_BYTES, self.device)
        self._next_round = 1

    def run(self) -> dict[int, OffsetSample]:
        """One sample for every rank but the reference. Collective; raises ClockError when a rank does not answer.

        Two partners that never ran at the same moment (more ranks than cores) give a poor sample and play again.
        """
        samples: dict[int, OffsetSample] = {}
        played: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        pending = [rank for rank in range(self.group.world_size) if rank != REFERENCE_RANK]
        for _ in range(_MAX_PASSES):
            everyone = self.group.all_gather(self._exchange_flags(pending))
            for rank in pending:
                played.setdefault(rank, []).append(
                    (everyone[REFERENCE_RANK][rank], everyone[rank][rank][:, 1])
                )
                initiator, responder = (
                    np.concatenate(part) for part in zip(*played[rank], strict=True)
                )
                samples[rank] = offset_from_rounds(initiator, responder, self.clock.step_ns)
            # Every rank holds the same rounds and comes to the same list.
            pending = [rank for rank in pending if samples[rank].bound_ns > _GOOD_BOUND_NS]
            if not pending:
                break
        return samples

    def _exchange_flags(self, ranks: list[int]) -> dict[int, np.ndarray]:
        """The reference rank plays with one rank after the other; the others wait in a barrier, off the CPU."""
        rounds: dict[int, np.ndarray] = {}
        for rank in ranks:
            if self.group.rank in (rank, REFERENCE_RANK):
                rounds[rank] = self._play(rank)
            self.group.barrier()
        self._next_round += self.num_rounds
        return rounds

    def _play(self, rank: int) -> np.ndarray:
        """Rounds with one partner; (num_rounds, 2) int64 ns of this side's readings."""
        is_initiator = self.group.rank == REFERENCE_RANK
        peer = rank if is_initiator else REFERENCE_RANK
        offset = rank * _FLAG_STRIDE_BYTES
        self._rounds.clear(0, self._rounds.size_bytes)
        error = self._library.kprof_pingpong(
            self._heap.bases[self.group.rank] + offset,
            self._heap.bases[peer] + offset,
            self._rounds.address,
            self.num_rounds,
            self._next_round,
            int(is_initiator),
            int(_TIMEOUT_S * self.clock.ticks_per_second),
            None,
        )
        _check(self._library, error)
        ticks = self._rounds.read(0, self._rounds.size_bytes).view(np.int64).reshape(-1, 2)
        return ticks_to_ns(ticks.copy(), self.clock.ticks_per_second)


def _check(library: ctypes.CDLL, error: int) -> None:
    if error != 0:
        text = library.kprof_error_text(error).decode()
        raise ClockError(f"the clock calibration kernel failed: {text}; run kprof doctor")
