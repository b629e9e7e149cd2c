"""Clocks of two devices compared through their host, by two ways that share no path, as limits that
kprof.clocks.causality puts together.

    common view   the host stores a number; it became visible after the last read of each device that
                  missed was issued, and before the first that hit had returned. The host's own delay
                  is in neither. What differs is how long the two devices' reads take
    two ways      the host asks and each device answers: the device's clock against the host's. Posted
                  writes and polled reads differ much, but alike on both devices, so that of two such
                  estimates the difference is good
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import kprof
from kprof.clocks.limits import Limits, RankClock
from kprof.clocks.offset import ticks_to_ns

HERE = Path(__file__).parent
# The clocks' numbers: the devices are 0 and 1.
HOST = 2
_TIMEOUT_S = 5
_WORD_BYTES = 128


@dataclass(frozen=True)
class Device:
    """A device whose kernels see host memory at `word` and `readings`; `launch` runs something that
    launches a kernel there, and returns what waits for its end."""

    launch: Callable[[Callable[[Any], int]], Callable[[], None]]
    ticks_per_second: float


def load(device: str) -> ctypes.CDLL:
    """The kernels, built for a device."""
    library = kprof.load_library(HERE / "kernel.hip", kprof.BuildOptions.for_device(device))
    pointer, word, long = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    library.third_corner_watch.argtypes = [pointer, pointer, word, long, pointer]
    library.third_corner_answer.argtypes = [pointer, pointer, pointer, word, long, pointer]
    library.third_corner_store.argtypes = [pointer, word, long]
    library.third_corner_ask.argtypes = [pointer, pointer, pointer, word, long]
    return library


def on_thread(prepare: Callable[[], None]) -> Callable[[Callable[[Any], int]], Callable[[], None]]:
    """A device of the CPU target: a thread of its own, which `prepare` may give a clock."""

    def launch(run: Callable[[Any], int]) -> Callable[[], None]:
        def work() -> None:
            prepare()
            run(None)

        thread = threading.Thread(target=work)
        thread.start()
        return thread.join

    return launch


def common_view(
    library: ctypes.CDLL, devices: Mapping[int, Device], memory: np.ndarray, count: int
) -> dict[int, np.ndarray]:
    """By device: (count, 2) ns of the last miss and the first hit, 0 where there was none.

    `memory` is uint64 in host memory that devices see, zeroed, of `num_words(count)`.
    """
    readings = _parts(memory, count)
    ends = [
        device.launch(
            lambda stream, at=readings[i], device=device: library.third_corner_watch(
                memory.ctypes.data, at.ctypes.data, count, _timeout(device), stream
            )
        )
        for i, device in devices.items()
    ]
    library.third_corner_store(memory.ctypes.data, count, 20_000)
    for end in ends:
        end()
    return {i: _ns(readings[i], devices[i]) for i in devices}


def two_ways(
    library: ctypes.CDLL, device: Device, memory: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """(count, 2) ns of the device, seen and sent, and of the host, sent and seen."""
    down, up = memory.ctypes.data, memory.ctypes.data + _WORD_BYTES
    of_device, of_host = _parts(memory, count)
    end = device.launch(
        lambda stream: library.third_corner_answer(
            down, up, of_device.ctypes.data, count, _timeout(device), stream
        )
    )
    failed = library.third_corner_ask(down, up, of_host.ctypes.data, count, _TIMEOUT_S * 10**9)
    end()
    if failed:
        raise RuntimeError("a device did not answer")
    return _ns(of_device, device), of_host.astype(np.int64)


def num_words(count: int) -> int:
    """How many uint64 of host memory the measurements need."""
    return 2 * _WORD_BYTES // 8 + 4 * count


def _parts(memory: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    rest = memory[2 * _WORD_BYTES // 8 :]
    return rest[: 2 * count].reshape(-1, 2), rest[2 * count : 4 * count].reshape(-1, 2)


def _timeout(device: Device) -> int:
    return int(_TIMEOUT_S * device.ticks_per_second)


def _ns(ticks: np.ndarray, device: Device) -> np.ndarray:
    return ticks_to_ns(ticks.astype(np.int64), device.ticks_per_second)


def limits_of_view(seen: Mapping[int, np.ndarray], rows: slice) -> list[Limits]:
    """Of both devices: a miss of one was issued before the other's hit had returned."""
    found = []
    for before, after in ((0, 1), (1, 0)):
        missed, hit = seen[before][rows, 0], seen[after][rows, 1]
        is_known = (missed > 0) & (hit > 0)
        number = np.flatnonzero(is_known)
        found.append(Limits(before, after, missed[is_known], hit[is_known], number))
    return found


def limits_of_ways(
    number: int, of_device: np.ndarray, of_host: np.ndarray, rows: slice
) -> list[Limits]:
    """Of one device and the host: nothing is seen before it was sent."""
    numbers = np.arange(len(of_host[rows]))
    return [
        Limits(HOST, number, of_host[rows, 0], of_device[rows, 0], numbers),
        Limits(number, HOST, of_device[rows, 1], of_host[rows, 1], numbers),
    ]


def clocks_of(limits: list[Limits], step_ns: float) -> dict[int, RankClock]:
    """The clocks that limits are about."""
    shown: dict[int, list[np.ndarray]] = {}
    for each in limits:
        shown.setdefault(each.before, []).append(each.sent_ns)
        shown.setdefault(each.after, []).append(each.seen_ns)
    ends = {number: np.concatenate(each) for number, each in shown.items()}
    return {n: RankClock(int(e.min()), int(e.max()), step_ns) for n, e in ends.items()}
