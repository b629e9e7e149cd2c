"""A group of ranks that are threads of this process, for tests and benchmarks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Result = TypeVar("Result")


class ThreadGroup:
    """Ranks as threads of this process; `run_threads` makes them."""

    def __init__(self, rank: int, shared: _Shared) -> None:
        self.rank = rank
        self.world_size = len(shared.values)
        self._shared = shared

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, by rank (the objects themselves)."""
        self._shared.values[self.rank] = value
        self.barrier()
        values = list(self._shared.values)
        self.barrier()
        return values

    def barrier(self) -> None:
        """Wait until all threads call this. Raises threading.BrokenBarrierError if one has failed."""
        self._shared.barrier.wait()


class _Shared:
    """What the threads of one run share."""

    def __init__(self, world_size: int) -> None:
        self.values: list[Any] = [None] * world_size
        self.barrier = threading.Barrier(world_size)


def run_threads(world_size: int, work: Callable[[ThreadGroup], Result]) -> list[Result]:
    """Run `work(group)` once per rank, each in its own thread. Returns the results by rank, or raises the first
    error. If a rank fails, the ranks that wait for it in a barrier get an error of their own, which is not
    raised here."""
    shared = _Shared(world_size)
    results: list[Any] = [None] * world_size
    errors: list[tuple[bool, int, BaseException]] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadGroup(rank, shared))
        except BaseException as error:
            shared.barrier.abort()
            errors.append((isinstance(error, threading.BrokenBarrierError), rank, error))

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"rank {rank}")
        for rank in range(world_size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise min(errors, key=lambda entry: entry[:2])[2]
    return results
