"""How long one call takes on a GPU, replayed from a graph over inputs and outputs that do not fit L2 together."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

# A call with the inputs of this number; what it returns is kept, so that no call writes where
# another did.
NumberedCall = Callable[[int], Any]

_COLD_BYTES = 160 << 20  # several times the L2 of any GPU
_MAX_CALLS = 500
_SAMPLES = 7
_SAMPLE_MS = 4.0
_ALIGNMENT = 512
_GAPS_BYTES = 0, (1 << 20) + (3 << 12)


@dataclass(frozen=True)
class Timing:
    """Microseconds per call: median, smallest and largest of the samples."""

    us: float
    least_us: float
    most_us: float

    def as_json(self) -> dict[str, float]:
        """Rounded."""
        return {name: round(value, 3) for name, value in asdict(self).items()}


def num_rotated(bytes_per_call: int) -> int:
    """How many inputs go in turn, so that none is found in a cache."""
    return max(2, min(_MAX_CALLS, -(-_COLD_BYTES // bytes_per_call)))


def time_us(call: NumberedCall, num_inputs: int) -> Timing:
    """One graph calls with every input once."""
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call(number) for number in range(num_inputs)]
    graph.replay()
    once_ms = _elapsed_ms(graph, 1)
    num_replays = max(1, min(50, round(_SAMPLE_MS / max(once_ms, 1e-3))))
    samples = [
        1e3 * _elapsed_ms(graph, num_replays) / num_replays / num_inputs for _ in range(_SAMPLES)
    ]
    del kept
    return Timing(statistics.median(samples), min(samples), max(samples))


def copy_gb_per_s(num_bytes: int) -> float:
    """Bytes read and written per second by torch's copy of this many bytes in all.

    A copy is up to a third slower for some distances between source and target, so two are tried.
    """
    return max(_copy_gb_per_s(num_bytes, gap_bytes) for gap_bytes in _GAPS_BYTES)


def _copy_gb_per_s(num_bytes: int, gap_bytes: int) -> float:
    num_inputs, half = num_rotated(num_bytes), num_bytes // 2
    target = -(-half // _ALIGNMENT) * _ALIGNMENT + gap_bytes
    memory = [
        torch.zeros(target + half, dtype=torch.uint8, device="cuda") for _ in range(num_inputs)
    ]
    timing = time_us(
        lambda number: memory[number][target:].copy_(memory[number][:half]), num_inputs
    )
    return num_bytes / timing.us / 1e3


def _elapsed_ms(graph: torch.cuda.CUDAGraph, num_replays: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(num_replays):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))
