"""How long one call takes: calls in a loop between two events, and the same calls replayed from a
CUDA graph.

The loop shows what a caller in Python gets, whose host may be slower than the device; the graph
shows the device. All ranks begin together, and the slowest rank's time counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.harness import captured
from kprof.devices.groups import Group

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
    own = [_elapsed_together_us(group, call, effort.num_calls) for _ in range(effort.num_repeats)]
    return _median_of_slowest(group, {"": own})[""]


def time_graph_us(group: Group, call: Call, effort: Effort) -> float:
    """The same with the calls replayed from a graph."""
    return time_graphs_us(group, {"": call}, effort)[""]


def time_graphs_us(group: Group, calls: dict[str, Call], effort: Effort) -> dict[str, float]:
    """The same for several calls, in turns: what differs between them is not what changed in between."""
    graphs = {name: captured(call, CALLS_PER_GRAPH, warm_up=True) for name, call in calls.items()}
    group.barrier()
    for graph in graphs.values():
        graph.replay()
    num_replays = max(1, effort.num_calls // CALLS_PER_GRAPH)
    own: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(effort.num_repeats):
        for name, graph in graphs.items():
            own[name].append(_elapsed_together_us(group, graph.replay, num_replays))
    return {
        name: each_us / CALLS_PER_GRAPH for name, each_us in _median_of_slowest(group, own).items()
    }


def _elapsed_together_us(group: Group, work: Call, num_times: int) -> float:
    """Once more ahead of the first event: there the ranks meet, which may be far apart when they leave the barrier."""
    torch.cuda.synchronize()
    group.barrier()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    work()
    begin.record()
    for _ in range(num_times):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / num_times


def _median_of_slowest(group: Group, own: dict[str, list[float]]) -> dict[str, float]:
    """By name: for each repeat the slowest rank, of these the median."""
    by_rank = group.all_gather(own)
    return {
        name: statistics.median(map(max, zip(*(times[name] for times in by_rank), strict=True)))
        for name in own
    }
