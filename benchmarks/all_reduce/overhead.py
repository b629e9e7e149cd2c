"""What recording costs a call. One that is not recorded runs kernels without instrumentation, so off costs nothing."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.all_reduce.timing import Effort, time_graphs_us
from instrumented_kernels.all_reduce import Plan
from kprof.groups import Group
from kprof.recording.arena import Arena
from kprof.recording.launch_buffer import LaunchBuffer
from kprof.recording.null_recorder import NullRecorder

ARENA_BYTES = 64 << 20


class GraphRecorder(NullRecorder):
    """Hands launches that go into a graph their part of an arena; replays write over it, which costs the same."""

    is_recording = True

    def __init__(self, device: str) -> None:
        self._arena = Arena(ARENA_BYTES, device)
        self._num_launches = 0

    def launch(
        self,
        kernel: str,
        regions: Any = None,
        *,
        num_blocks: int = 0,
        threads_per_block: int = 0,
        tracks_per_block: int = 0,
    ) -> LaunchBuffer:
        del kernel, regions, threads_per_block
        self._num_launches += 1
        return self._arena.launch_buffer(self._num_launches, num_blocks, tracks_per_block)


def measure_overhead(
    group: Group, plan: Plan, sizes: list[int], dtype: torch.dtype, effort: Effort
) -> list[dict[str, Any]]:
    """Microseconds per call of `auto`, by size; with and without recording in turns."""
    return [
        {"bytes": num_bytes} | _measure_at(group, plan, num_bytes, dtype, effort)
        for num_bytes in sizes
    ]


def _measure_at(
    group: Group, plan: Plan, num_bytes: int, dtype: torch.dtype, effort: Effort
) -> dict[str, float]:
    tensor = torch.zeros(num_bytes // dtype.itemsize, dtype=dtype, device=plan.device)
    recorder: Any = GraphRecorder(plan.device)
    calls = {
        "off_us": lambda: plan(tensor, out=tensor),
        "recording_us": lambda: plan(tensor, out=tensor, recorder=recorder),
    }
    return time_graphs_us(group, calls, effort)
