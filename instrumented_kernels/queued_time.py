"""Times launches on a GPU that are queued ahead, so that the host's speed does not matter."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from kprof.devices.groups import Group
from kprof.devices.on_use import torch

# 10 ms at 2 GHz, which is longer than the host needs to launch the measured work.
_SLEEP_CYCLES: Final = 20_000_000


def together_us(
    group: Group, device: str, meet: Callable[[], object], work: Callable[[], object]
) -> float:
    """The time of `work` on the slowest rank, right after `meet`, which is not timed.

    Ranks leave the host's barrier at different times. In `meet` they wait for each other, so that
    they begin `work` together. Without a GPU, the time on the host.
    """
    group.barrier()
    own_us = _on_host_us(work, meet) if device == "cpu" else queued_us(work, meet)
    return max(group.all_gather(own_us))


def _on_host_us(work: Callable[[], object], first: Callable[[], object]) -> float:
    first()
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e6


def queued_us(
    work: Callable[[], object],
    first: Callable[[], object] = lambda: None,
    sleep_cycles: int = _SLEEP_CYCLES,
) -> float:
    """The GPU time of the launches of `work`, which follow those of `first`.

    The GPU sleeps for `sleep_cycles`, until all of them are queued.
    """
    cuda: Any = torch.cuda
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    cuda.synchronize()
    cuda._sleep(sleep_cycles)
    first()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3
