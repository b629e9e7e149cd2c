"""Ranks that exchange items, as threads of one process: under `kprof record`, also without torch.

python -m benchmarks.verified.workload --slow pack:1:2.5      rank 1 packs 2.5 times as long
python -m benchmarks.verified.workload --target cuda          both on one GPU; with torch
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from kprof.devices import gpu
from kprof.devices.build import BuildOptions, load_library
from kprof.recording.rank.process import RECORD_DIR_VARIABLE, delays_of_environment
from kprof.recording.rank.recorder import Recorder

FOLDER = Path(__file__).parent
T = TypeVar("T")


class Call(ctypes.Structure):
    """`Call` of kernel.hip."""

    _fields_ = [
        ("started", ctypes.c_uint64),
        ("packed", ctypes.c_uint64),
        ("rank", ctypes.c_uint32),
        ("num_ranks", ctypes.c_uint32),
        ("epoch", ctypes.c_uint32),
        ("items", ctypes.c_uint32),
        ("pack_ticks", ctypes.c_uint32),
        ("reduce_ticks", ctypes.c_uint32),
    ]


class Threads:
    """A group of ranks that are threads."""

    def __init__(self, rank: int, values: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.world_size = rank, len(values)
        self._values, self._barrier = values, barrier

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, by rank."""
        self._values[self.rank] = value
        self.barrier()
        values = list(self._values)
        self.barrier()
        return values

    def barrier(self) -> None:
        """Wait until all ranks call this."""
        self._barrier.wait()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--items", type=int, default=4)
    parser.add_argument("--item-us", type=float, default=50.0, help="how long an item takes")
    parser.add_argument("--slow", action="append", default=[], metavar="REGION:RANK:FACTOR")
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    return parser.parse_args()


def factor_of(slow: list[str], region: str, rank: int) -> float:
    """How many times as long a rank takes for a region."""
    given = [text.split(":") for text in slow]
    return next((float(f) for name, of, f in given if (name, int(of)) == (region, rank)), 1.0)


class Memory:
    """Zeros that the kernels of all ranks see, and a stream of its own for each rank on a GPU."""

    def __init__(self, target: str, count: int) -> None:
        self.target = target
        if target == "cpu":
            self._words: Any = np.zeros(count, dtype=np.uint32)
            self.address = int(self._words.ctypes.data)
        else:
            import torch

            self._words = torch.zeros(count, dtype=torch.int32, device=target)
            torch.cuda.synchronize()
            self.address = self._words.data_ptr()

    @contextlib.contextmanager
    def stream(self) -> Iterator[int]:
        """A stream that is current in it, for this thread; kernels of both ranks run at a time."""
        if self.target == "cpu":
            yield 0
            return
        import torch

        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            yield torch.cuda.current_stream().cuda_stream


def run_rank(group: Threads, memory: Memory, arguments: argparse.Namespace) -> None:
    """All calls of a rank."""
    with memory.stream() as stream:
        run_calls(group, memory, arguments, ctypes.c_void_p(stream))


def run_calls(
    group: Threads, memory: Memory, arguments: argparse.Namespace, stream: ctypes.c_void_p
) -> None:
    """The same, on a stream."""
    library = load_library(FOLDER / "kernel.hip", BuildOptions.for_device(memory.target))
    recorder = Recorder(
        Path(os.environ[RECORD_DIR_VARIABLE]),
        rank=group.rank,
        world_size=group.world_size,
        regions=FOLDER / "regions.h",
        device=memory.target,
        arena_bytes=4 << 20,
        delays=delays_of_environment(),
    )
    address, flags = memory.address, 4 * group.world_size**2
    library.ticks_per_second.restype = ctypes.c_uint64
    ticks = [
        round(
            arguments.item_us
            / 1e6
            * library.ticks_per_second()
            * factor_of(arguments.slow, region, group.rank)
        )
        for region in ("pack", "reduce")
    ]
    recorder.align(group)
    for epoch in range(1, arguments.calls + 1):
        places = address, address + flags
        call = Call(*places, group.rank, group.world_size, epoch, arguments.items, *ticks)
        group.barrier()
        buffer = recorder.launch("exchange", num_blocks=1, threads_per_block=1, tracks_per_block=1)
        if error := library.run_exchange(ctypes.byref(call), stream, buffer.packed()):
            raise RuntimeError(f"the launch failed with error {error}")
        gpu.synchronize(memory.target)
    recorder.align(group)
    recorder.close()


def main() -> int:
    arguments = parse_arguments()
    memory = Memory(arguments.target, 2 * arguments.ranks**2)
    values: list[Any] = [None] * arguments.ranks
    barrier = threading.Barrier(arguments.ranks)
    # Ranks that start together would build together.
    load_library(FOLDER / "kernel.hip", BuildOptions.for_device(arguments.target))
    threads = [
        threading.Thread(target=run_rank, args=(Threads(rank, values, barrier), memory, arguments))
        for rank in range(arguments.ranks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return int(arguments.exit)


if __name__ == "__main__":
    raise SystemExit(main())
