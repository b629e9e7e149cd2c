"""Places that exchange items: blocks of ranks, which are threads of one process. Under `kprof record`, also without torch.

python -m benchmarks.verified.workload --slow pack:1:2.5      rank 1 packs 2.5 times as long
python -m benchmarks.verified.workload --ranks 1 --blocks 4 --target cuda --slow pack:1:2.5      block 1 of one GPU does
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
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
        ("ticks", ctypes.c_uint64),
        ("rank", ctypes.c_uint32),
        ("num_ranks", ctypes.c_uint32),
        ("epoch", ctypes.c_uint32),
        ("items", ctypes.c_uint32),
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
    parser.add_argument("--blocks", type=int, default=1, help="of each rank")
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--items", type=int, default=4)
    parser.add_argument("--item-us", type=float, default=50.0, help="how long an item takes")
    parser.add_argument("--slow", action="append", default=[], metavar="REGION:PLACE:FACTOR")
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--in-turn", type=Path, metavar="FILE", help="one process calls at a time")
    arguments = parser.parse_args()
    if arguments.target == "cuda" and arguments.ranks > 1:
        parser.error("one GPU has one rank: give --ranks 1, and --blocks")
    return arguments


def factor_of(slow: list[str], region: str, place: int) -> float:
    """How many times as long a place takes for a region."""
    given = [text.split(":") for text in slow]
    return next((float(f) for name, of, f in given if (name, int(of)) == (region, place)), 1.0)


class Memory:
    """Words that the kernels of all ranks see."""

    def __init__(self, target: str, words: np.ndarray) -> None:
        self.target = target
        if target == "cpu":
            self._words: Any = words
            self.address = int(words.ctypes.data)
        else:
            import torch

            self._words = torch.from_numpy(words.view(np.int32)).to(target)
            torch.cuda.synchronize()
            self.address = self._words.data_ptr()


@contextlib.contextmanager
def in_turn(file: Path | None) -> Iterator[None]:
    """Nobody else has that file meanwhile. Processes start side by side, but a GPU that they share
    would cut their kernels into slices."""
    if file is None:
        yield
        return
    with file.open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


def run_rank(group: Threads, memory: Memory, arguments: argparse.Namespace) -> None:
    """All calls of a rank."""
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
    flags = 4 * num_places(arguments) ** 2
    addresses = [memory.address + i * flags for i in range(3)]
    blocks = arguments.blocks
    recorder.align(group)
    with in_turn(arguments.in_turn if group.rank == 0 else None):
        for epoch in range(1, arguments.calls + 1):
            call = Call(*addresses, group.rank, group.world_size, epoch, arguments.items)
            group.barrier()
            buffer = recorder.launch(
                "exchange", num_blocks=blocks, threads_per_block=1, tracks_per_block=1
            )
            # The default stream, which is torch's current one, too.
            if error := library.run_exchange(ctypes.byref(call), blocks, None, buffer.packed()):
                raise RuntimeError(f"the launch failed with error {error}")
            gpu.synchronize(memory.target)
    recorder.align(group)
    recorder.close()


def num_places(arguments: argparse.Namespace) -> int:
    """Blocks of all ranks."""
    return int(arguments.ranks * arguments.blocks)


def words_of(arguments: argparse.Namespace, ticks_per_second: int) -> np.ndarray:
    """What the kernels share: two tables of flags, and the ticks that an item takes every place."""
    count = num_places(arguments)
    ticks = [
        round(arguments.item_us / 1e6 * ticks_per_second * factor_of(arguments.slow, region, place))
        for place in range(count)
        for region in ("pack", "reduce")
    ]
    words: np.ndarray = np.r_[np.zeros(2 * count**2), ticks].astype(np.uint32)
    return words


def main() -> int:
    arguments = parse_arguments()
    # Ranks that start together would build together.
    library = load_library(FOLDER / "kernel.hip", BuildOptions.for_device(arguments.target))
    library.ticks_per_second.restype = ctypes.c_uint64
    memory = Memory(arguments.target, words_of(arguments, library.ticks_per_second()))
    values: list[Any] = [None] * arguments.ranks
    barrier = threading.Barrier(arguments.ranks)
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
