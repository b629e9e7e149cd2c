"""Measures how much recording slows a workload down: A-B-B-A runs, timed in the same way with
recording off and on.

    kprof record --measure-overhead -- CMD      runs CMD: off, on (this one is kept), on, off

Every rank takes a timestamp at each `recorder.launch(...)`: an event on the current torch stream of
a GPU, or the monotonic clock on the CPU target, where launches are synchronous. The time to the
next launch is the cost of a launch and the code around it. Kernels are compared by the median over
their launches, so that a warm-up or a pause has little influence. The difference between two equal
runs shows how much is noise.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kprof.capture.manifest import KernelOverhead, Overhead
from kprof.capture.output import write_json
from kprof.devices import gpu
from kprof.errors import CaptureError
from kprof.recording.endings.complaints import complain

if TYPE_CHECKING:
    from kprof.recording.launches.launch_log import Plan

# Enough for a median, without much memory.
_MAX_MOMENTS: Final = 20_000


class KernelTiming(msgspec.Struct, frozen=True):
    """The median time from a launch to the next launch of any kernel, for one rank and kernel."""

    kernel: str
    num_launches: int
    median_us: float


class LaunchTimer:
    """Takes a timestamp at each launch of a rank. `device` is "cpu" or a torch device."""

    def __init__(self, directory: Path, rank: int, device: str) -> None:
        self._directory = directory
        self._rank = rank
        self._device = device
        self._moments: list[tuple[str, Any]] = []

    def mark(self, kernel: str) -> None:
        """Call it before each launch of `kernel`."""
        if len(self._moments) < _MAX_MOMENTS:
            self._moments.append((kernel, gpu.note_moment(self._device)))

    def observe(self, plan: Plan, _number: int) -> None:
        """The same for a recorder."""
        self.mark(plan.kernel.name)

    def finish(self) -> None:
        """Wait for the device, then write the timings.

        A disk that refuses is one line on stderr.
        """
        spans: dict[str, list[float]] = {}
        gpu.synchronize(self._device)
        for (kernel, begin), (_, end) in zip(self._moments, self._moments[1:], strict=False):
            spans.setdefault(kernel, []).append(gpu.elapsed_us(begin, end))
        timings = [
            KernelTiming(kernel, len(us), statistics.median(us)) for kernel, us in spans.items()
        ]
        try:
            write_json(self._directory / f"timings-{self._rank:05d}.json", timings)
        except CaptureError as error:
            complain(f"rank {self._rank}: {error}")


def read_timings(directory: Path) -> list[KernelTiming]:
    """The timings of all ranks of a run."""
    files = sorted(directory.glob("timings-*.json"))
    of_ranks = [msgspec.json.decode(file.read_bytes(), type=list[KernelTiming]) for file in files]
    return list(chain.from_iterable(of_ranks))


def compare_runs(
    off: Sequence[Sequence[KernelTiming]], on: Sequence[Sequence[KernelTiming]]
) -> Overhead | None:
    """The overhead from two runs with recording off and two with it on.

    None if no kernel was launched twice in all of them.
    """
    runs = [*off, *on]
    kernels = []
    for name in dict.fromkeys(timing.kernel for timing in runs[0]):
        timings = [[timing for timing in run if timing.kernel == name] for run in runs]
        if not all(timings):
            continue
        us = [statistics.median(timing.median_us for timing in run) for run in timings]
        num_launches = min(timing.num_launches for run in timings for timing in run)
        kernels.append(
            KernelOverhead(name, num_launches, tuple(us[: len(off)]), tuple(us[len(off) :]))
        )
    return Overhead(tuple(kernels)) if kernels else None
