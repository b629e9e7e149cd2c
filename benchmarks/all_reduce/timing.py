"""How long one call takes: calls in a loop between two events, and the same calls replayed from a CUDA graph.

The loop shows what a caller in Python gets, whose host may be slower than the device; the graph shows the device. All
ranks begin together, and the slowest rank's time counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kprof.groups import Group

Call = Callable[[], object]

NUM_WARMUPS = 5
CALLS_PER_GRAPH = 20


@dataclass(frozen=True)
class Effort:
    """Calls between two events, and how often that is done; the median counts."""

    num_calls: int = 100
    num_repeats: int = 5


def time_loop_us(group: Group, call: Call, effort: Effort) -> float:
    """Microseconds per call of the slowest rank, median over the repeats."""
    for _ in range(NUM_WARMUPS):
        call()
    return _median_of_slowest(group, lambda: _elapsed_us(call, effort.num_calls), effort)


def time_graph_us(group: Group, call: Call, effort: Effort) -> float:
    """The same with the calls replayed from a graph."""
    graph = captured(call, CALLS_PER_GRAPH)
    group.barrier()
    graph.replay()
    num_replays = max(1, effort.num_calls // CALLS_PER_GRAPH)
    each_us = _median_of_slowest(group, lambda: _elapsed_us(graph.replay, num_replays), effort)
    return each_us / CALLS_PER_GRAPH


def captured(call: Call, num_calls: int) -> torch.cuda.CUDAGraph:
    """A graph of `num_calls` calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(num_calls):
            call()
    return graph


def _elapsed_us(work: Call, num_times: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(num_times):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / num_times


def _median_of_slowest(group: Group, measure: Callable[[], float], effort: Effort) -> float:
    own = []
    for _ in range(effort.num_repeats):
        torch.cuda.synchronize()
        group.barrier()
        own.append(measure())
    return statistics.median(max(each) for each in zip(*group.all_gather(own), strict=True))
