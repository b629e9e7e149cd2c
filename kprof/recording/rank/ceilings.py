"""How fast devices move data: `kprof doctor --measure` measures it, and recordings on this machine
use it.

A ceiling is the best of several copies. On the CPU one core copies, because a rank's blocks are
fibers of one thread.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Final

import msgspec

from kprof.capture.manifest import Ceilings
from kprof.capture.output import write_json
from kprof.devices import gpu
from kprof.devices.cache import cache_dir
from kprof.devices.targets import Target, count_devices, describe_device
from kprof.on_use import np

_REPEATS: Final = 7
# Larger than the last-level cache of any device.
_FAR_BYTES: Final = 256 << 20
# Both buffers fit a core's second-level cache, and the call itself takes negligible time.
_NEAR_BYTES: Final = 64 << 10
_NEAR_COPIES: Final = 1024
_FILE: Final = "ceilings.json"


class MeasuredPair(msgspec.Struct, frozen=True):
    """A copy from one device of this host to another."""

    source: str
    target: str
    gb_s: float


class MeasuredDevice(msgspec.Struct, frozen=True):
    """A device by its torch name, what it is, and what it can do."""

    device: str
    name: str
    ceilings: Ceilings


class MeasuredMachine(msgspec.Struct, frozen=True):
    """Everything that was measured on a host."""

    host: str
    devices: tuple[MeasuredDevice, ...] = ()
    pairs: tuple[MeasuredPair, ...] = ()


def measure_host() -> MeasuredMachine:
    """Measure the CPU and every GPU that torch may use, and every pair of those; some seconds."""
    gpus = [f"cuda:{i}" for i in range(_count_gpus())]
    pairs = tuple(
        MeasuredPair(source, target, _gb_s(_FAR_BYTES, gpu.copier(source, target, _FAR_BYTES)))
        for source, target in permutations(gpus, 2)
    )
    devices = [MeasuredDevice("cpu", describe_device("cpu").name, _measure_cpu())]
    for device in gpus:
        copy_gb_s = _gb_s(_FAR_BYTES, gpu.copier(device, device, _FAR_BYTES))
        peer_gb_s = max((pair.gb_s for pair in pairs if pair.source == device), default=0.0)
        ceilings = Ceilings(copy_gb_s=copy_gb_s, peer_gb_s=peer_gb_s)
        devices.append(MeasuredDevice(device, describe_device(device).name, ceilings))
    return MeasuredMachine(socket.gethostname(), tuple(devices), pairs)


def keep(measured: MeasuredMachine) -> Path:
    """Keep what was measured for recordings on this host; returns the file. Raises CaptureError."""
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, measured)
    return path


def kept_ceilings(device: str) -> Ceilings | None:
    """What is kept of a device of this host; None where it was not measured, or was another one."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        measured = msgspec.json.decode(_path().read_bytes(), type=MeasuredMachine)
        if measured.host == socket.gethostname():
            name = describe_device(device).name
            for each in measured.devices:
                if (each.device, each.name) == (device, name):
                    return each.ceilings
    return None


def _path() -> Path:
    return cache_dir() / _FILE


def _count_gpus() -> int:
    return max(count_devices(target) for target in Target if target is not Target.CPU)


def _measure_cpu() -> Ceilings:
    far_gb_s = _gb_s(_FAR_BYTES, _host_copier(_FAR_BYTES, 1))
    near = _host_copier(_NEAR_BYTES, _NEAR_COPIES)
    near_gb_s = _gb_s(_NEAR_BYTES * _NEAR_COPIES, near)
    # Peers of the CPU target are other processes: their memory is this one's.
    return Ceilings(copy_gb_s=far_gb_s, near_gb_s=near_gb_s, peer_gb_s=far_gb_s)


def _host_copier(size_bytes: int, num_copies: int) -> Callable[[], None]:
    source, target = np.ones(size_bytes, np.uint8), np.zeros(size_bytes, np.uint8)

    def copy() -> None:
        for _ in range(num_copies):
            np.copyto(target, source)

    return copy


def _gb_s(size_bytes: int, copy: Callable[[], None]) -> float:
    """The best rate of several copies; the first one, which touches the memory, does not count."""
    copy()
    best_s = float("inf")
    for _ in range(_REPEATS):
        begin_s = time.perf_counter()
        copy()
        best_s = min(best_s, time.perf_counter() - begin_s)
    return size_bytes / max(best_s, 1e-9) / 1e9
