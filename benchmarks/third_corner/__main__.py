"""The third corner of two GPUs and their host: do estimators of the GPUs' offset that share no path
agree, and by how much?

    python -m benchmarks.third_corner [--count 20000] [--cpu] [--output FILE]

On a machine with two GPUs: the host's common view, and two ways between host and each GPU, in turns;
the ping-pong between the GPUs is `python -m benchmarks.clock_alignment`. Odd rounds are held out of
the estimates, and `held_out_misses` counts those of their limits that an estimate contradicts beyond
its bound. With --cpu, two threads with clocks half a second and 70 ppm apart take the places of the
GPUs: that shows whether the script works, and nothing about GPUs. About half a minute.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.third_corner import corner
from kprof.capture.manifest import Alignment
from kprof.clocks.calibration import load_calibration
from kprof.clocks.causality import align_by_limits
from kprof.clocks.limits import Limits
from kprof.devices.targets import target_of_device

EVEN, ODD = slice(0, None, 2), slice(1, None, 2)


def planted(library: ctypes.CDLL, offset_ns: int, drift: float) -> Callable[[], None]:
    """What gives the calling thread a clock."""
    origin_ns = time.monotonic_ns()
    types = [ctypes.c_int64, ctypes.c_double, ctypes.c_uint64]
    library.kprof_cpu_plant_clock.argtypes = types
    return lambda: library.kprof_cpu_plant_clock(offset_ns, drift, origin_ns)


def on_cpu(library: ctypes.CDLL) -> dict[int, corner.Device]:
    """Two threads, the second with another clock."""
    clocks = [planted(library, 0, 0.0), planted(library, 5 * 10**8, 7e-5)]
    return {i: corner.Device(corner.on_thread(clock), 1e9) for i, clock in enumerate(clocks)}


def on_gpus() -> dict[int, corner.Device]:
    """The first two GPUs."""
    import torch

    def launcher(number: int) -> Callable[[Callable[[Any], int]], Callable[[], None]]:
        stream = torch.cuda.Stream(number)

        def launch(run: Callable[[Any], int]) -> Callable[[], None]:
            with torch.cuda.device(number):
                if run(ctypes.c_void_p(stream.cuda_stream)):
                    raise RuntimeError(f"no kernel could be launched on GPU {number}")
            return stream.synchronize

        return launch

    library = load_calibration(target_of_device("cuda"))
    rate = float(library.kprof_ticks_per_second())
    return {number: corner.Device(launcher(number), rate) for number in (0, 1)}


def host_memory(count: int, is_cpu: bool) -> np.ndarray:
    """Zeroed words that all devices see."""
    if is_cpu:
        return np.zeros(corner.num_words(count), np.uint64)
    import torch

    pinned = torch.zeros(corner.num_words(count), dtype=torch.int64, pin_memory=True)
    return pinned.numpy().view(np.uint64)


def measure(
    library: ctypes.CDLL, devices: dict[int, corner.Device], count: int, is_cpu: bool
) -> dict[str, Callable[[slice], list[Limits]]]:
    """By estimator: its limits, of some of the rounds."""
    seen = corner.common_view(library, devices, host_memory(count, is_cpu), count)
    ways = {
        i: corner.two_ways(library, device, host_memory(count, is_cpu), count)
        for i, device in devices.items()
    }
    return {
        "common_view": lambda rows: corner.limits_of_view(seen, rows),
        "two_ways": lambda rows: [
            limits for i in ways for limits in corner.limits_of_ways(i, *ways[i], rows)
        ],
    }


def misses(alignment: Alignment, held_out: list[Limits], step_ns: float) -> int:
    """How many limits the alignment contradicts by more than the bound of their pair."""
    correct = {entry.rank: entry for entry in alignment.ranks}
    count = 0
    for each in held_out:
        slack_ns = alignment.bound_between_ns(each.before, each.after) + step_ns
        for sent, seen in zip(each.sent_ns.tolist(), each.seen_ns.tolist(), strict=True):
            sent_ns = correct[each.before].correction_ns(sent)
            count += seen - sent + correct[each.after].correction_ns(seen) - sent_ns < -slack_ns
    return count


def compare(found: dict[str, Callable[[slice], list[Limits]]], step_ns: float) -> dict[str, Any]:
    """Bounds, misses, and how far the estimators disagree; times in ns."""
    result: dict[str, Any] = {}
    offsets = []
    moment = found["common_view"](EVEN)[1].sent_ns
    for name, limits in found.items():
        used = limits(EVEN)
        alignment = align_by_limits(used, corner.clocks_of(used, step_ns), name)
        held_out = limits(ODD)
        result[name] = {
            "bound_ns": round(alignment.bound_between_ns(0, 1), 1),
            "held_out": sum(len(each.number) for each in held_out),
            "held_out_misses": misses(alignment, held_out, step_ns),
        }
        (entry,) = (each for each in alignment.ranks if each.rank == 1)
        offsets.append(entry.correction_ns(int(np.median(moment))))
    result["disagreement_ns"] = round(abs(offsets[0] - offsets[1]), 1)
    return result


def main() -> None:
    parser: argparse.ArgumentParser = harness.options(__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    command = f"python -m benchmarks.third_corner --count {given.count}"
    result = harness.context(command + " --cpu" * given.cpu, "" if given.cpu else "cuda:0")
    library = corner.load("cpu" if given.cpu else "cuda")
    devices = on_cpu(library) if given.cpu else on_gpus()
    found = measure(library, devices, given.count, given.cpu)
    result |= compare(found, 1.0 if given.cpu else 32.0)
    harness.show_and_write(result, given.output)


if __name__ == "__main__":
    main()
