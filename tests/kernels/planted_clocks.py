"""Real calibrations on the CPU target whose ranks (threads) have planted clocks, and how far the alignment is off."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from thread_ranks import ThreadGroup, run_threads

from kprof.capture.manifest import Alignment
from kprof.clocks.alignment import align_clocks
from kprof.clocks.calibration import Calibrator, load_calibration, measure_clock
from kprof.clocks.offset import Pair
from kprof.devices.targets import Target


@dataclass(frozen=True)
class Planted:
    """planted = true + offset + drift * (true - origin); true is CLOCK_MONOTONIC."""

    offset_ns: int
    drift: float
    origin_ns: int = 0

    def plant(self) -> Planted:
        """Bend the clock that this thread's kernels read."""
        library = load_calibration(Target.CPU)
        library.kprof_cpu_plant_clock.argtypes = [ctypes.c_int64, ctypes.c_double, ctypes.c_uint64]
        # One reading for both sides: a second one in C is late by as long as this thread waits.
        clock = replace(self, origin_ns=time.monotonic_ns())
        library.kprof_cpu_plant_clock(clock.offset_ns, clock.drift, clock.origin_ns)
        return clock

    def read(self, true_ns: int) -> int:
        return true_ns + self.offset_ns + round(self.drift * (true_ns - self.origin_ns))


@dataclass(frozen=True)
class Calibrated:
    """What came out, and the true moments after the first and before the last calibration, between which it holds."""

    alignment: Alignment
    clocks: list[Planted]
    first_ns: int
    last_ns: int
    # The widest limits that one calibration of two ranks measured: how far off its estimate can be.
    widest_sample_ns: float

    def errors_ns(self) -> dict[Pair, float]:
        """By pair: the worst difference between two ranks' aligned times of the same moment."""
        moments = np.linspace(self.first_ns, self.last_ns, 9).astype(np.int64).tolist()
        aligned = {}
        for entry in self.alignment.ranks:
            local = [self.clocks[entry.rank].read(moment) for moment in moments]
            aligned[entry.rank] = np.array(
                [
                    ns - moment + entry.correction_ns(ns)
                    for ns, moment in zip(local, moments, strict=True)
                ]
            )
        return {
            (pair.a, pair.b): float(np.abs(aligned[pair.a] - aligned[pair.b]).max())
            for pair in self.alignment.pairs
        }

    def num_outside(self) -> int:
        """Pairs whose error is larger than their bound."""
        return sum(
            error > self.alignment.bound_between_ns(*pair)
            for pair, error in self.errors_ns().items()
        )


def random_plants(seed: int, num_ranks: int) -> list[Planted]:
    """Offsets up to 10 ms either way, drifts up to 100 ppm."""
    random = np.random.default_rng(seed)
    return [
        Planted(int(random.uniform(-1e7, 1e7)), float(random.uniform(-1e-4, 1e-4)))
        for _ in range(num_ranks)
    ]


def calibrate(
    plants: Sequence[Planted],
    *,
    gap_s: float = 0.02,
    num: int = 2,
    host_of: Callable[[int], str] | None = None,
    turns_of: Callable[[int], list[list[Pair]]] | None = None,
) -> Calibrated:
    """`num` calibrations, `gap_s` apart, of ranks with these clocks."""

    def work(group: ThreadGroup) -> Calibrated:
        clock = plants[group.rank].plant()
        host = host_of(group.rank) if host_of else None
        calibrator = Calibrator(group, "cpu", measure_clock("cpu"), host=host, turns_of=turns_of)
        calibrator.run()
        first_ns = time.monotonic_ns()
        for _ in range(num - 1):
            time.sleep(gap_s)
            last_ns = time.monotonic_ns()
            calibrator.run()
        alignment = align_clocks(calibrator.method, 0, calibrator.calibrations)
        samples = [sample for pairs in calibrator.calibrations for sample in pairs.values()]
        widest_ns = max(sample.rigorous_bound_ns for sample in samples)
        return Calibrated(alignment, group.all_gather(clock), first_ns, last_ns, widest_ns)

    return run_threads(len(plants), work)[0]
