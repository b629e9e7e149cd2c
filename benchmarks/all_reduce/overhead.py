"""What recording costs a call.

One that is not recorded runs kernels without instrumentation, so off costs nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.all_reduce.timing import Effort, time_graphs_us
from instrumented_kernels.all_reduce import Plan
from kprof.groups import Group
from kprof.recording.arena import Arena
from kprof.recording.launch_buffer import LaunchBuffer
from kprof.recording.null_recorder import NullRecorder

# Launches can reserve half of it. The largest grids of the kernels for one GPU take 80 MiB.
RESERVED_BYTES = 256 << 20
# Replays claim their chunks, so this has to hold all calls of a measurement.
CLAIMED_BYTES = 2 << 30


class GraphRecorder(NullRecorder):
    """Gives launches in a graph what it gives eager ones, or what it gives captured ones.

    Replays write over reserved chunks, which costs what it costs an eager launch.
    """

    is_recording = True

    def __init__(self, device: str, is_claiming: bool = False) -> None:
        self._arena = Arena(CLAIMED_BYTES if is_claiming else RESERVED_BYTES, device)
        self._is_claiming = is_claiming
        self._num_launches = 0

    def launch(
        self,
        kernel: str,
        regions: Any = None,
        *,
        num_blocks: int = 0,
        threads_per_block: int = 0,
        tracks_per_block: int = 0,
        is_replayed: bool = False,
    ) -> LaunchBuffer:
        del kernel, regions, threads_per_block, is_replayed
        self._num_launches += 1
        if self._is_claiming:
            return self._arena.switched_buffer(self._num_launches)
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
    eager: Any = GraphRecorder(plan.device)
    captured: Any = GraphRecorder(plan.device, is_claiming=True)
    calls = {
        "off_us": lambda: plan(tensor, out=tensor),
        "recording_us": lambda: plan(tensor, out=tensor, recorder=eager),
        "recording_in_graph_us": lambda: plan(tensor, out=tensor, recorder=captured),
    }
    return time_graphs_us(group, calls, effort)
