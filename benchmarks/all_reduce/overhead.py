"""What recording costs a call. One that is not recorded runs kernels without instrumentation, so off costs nothing."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.all_reduce.timing import Effort, time_graphs_us
from instrumented_kernels.all_reduce import Plan
from kprof.groups import Group
from kprof.recording.arena import Arena
from kprof.recording.recorder import NO_CHUNK, LaunchBuffer, NullRecorder

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
        num_tracks = num_blocks * tracks_per_block
        first = self._arena.reserve(num_tracks)
        if first == NO_CHUNK:
            tracks_per_block = num_tracks = 0
        return LaunchBuffer(
            self._arena.address,
            self._num_launches,
            first,
            tracks_per_block,
            num_tracks,
            *self._arena.limits,
        )


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
