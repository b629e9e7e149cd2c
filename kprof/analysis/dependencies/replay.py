"""Replay a call with something changed: what would its end be if a rank were like the others, or
transfers took no time?

The graph of the call is run again. Spans keep their durations, tracks their gaps, a wait ends when
its send has ended and the data had its time to travel; unchanged, that gives the measured call, and
the difference between the two is the replay's error.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from kprof.analysis.calls import Call
from kprof.analysis.dependencies.graph import ACROSS_RANKS, CallGraph, Ints, graph_of
from kprof.analysis.metric import metric

if TYPE_CHECKING:
    import pandas as pd

    from kprof.analysis.summary import Summary

Floats = NDArray[np.float64]

# Replays of single ranks are worth it for those that make the others wait.
_MAX_RANKS: Final = 8

RANK_AT_THE_MEDIAN: Final = "rank at the median"
ARRIVAL_ORDER: Final = "waits in arrival order"
NO_TRANSFER_TIME: Final = "no transfer time"


@dataclass(frozen=True)
class _Plan:
    """A replay's input: durations and gaps before every span, when the first launch of a rank
    starts, and travel times."""

    duration: Floats
    gap: Floats
    previous: Ints
    travel: Floats
    launch_gap: Floats
    shortest_wait: Floats


@metric(one_clock=ACROSS_RANKS)
def what_if(summary: Summary, call: Call | None = None) -> pd.DataFrame:
    """Predicted length of a call with one thing changed, the largest gain first.

    Columns: scenario, rank (or -1), predicted_ns, gain_ns (against the replay of the call as it
    was), gain_share, measured_ns, replay_error (of the unchanged replay, relative). Scenarios:
    "rank at the median" (its regions, its gaps and its start no longer than the median of the other
    ranks, and so the work that others have with it), "waits in arrival order" (a track takes next
    what is there first), "no transfer time" (data is there when its send ends). Default: the call
    of median length. Raises ClockError on unaligned clocks.
    """
    import pandas as pd

    columns = ["scenario", "rank", "predicted_ns"]
    graph = graph_of(summary, call)
    if graph is None:
        derived = ["gain_ns", "gain_share", "measured_ns", "replay_error"]
        return pd.DataFrame({name: [] for name in columns + derived})
    plan = _as_it_was(graph)
    unchanged = _length(graph, plan)
    rows = [(RANK_AT_THE_MEDIAN, rank) for rank in _ranks_worth_fixing(graph)]
    rows += [(ARRIVAL_ORDER, -1), (NO_TRANSFER_TIME, -1)]
    frame = pd.DataFrame(
        [(name, rank, _length(graph, _changed(graph, plan, name, rank))) for name, rank in rows],
        columns=columns,
    )
    measured = graph.end_ns - graph.start_ns
    frame["gain_ns"] = unchanged - frame["predicted_ns"]
    frame["gain_share"] = frame["gain_ns"] / max(1.0, unchanged)
    frame["measured_ns"] = measured
    frame["replay_error"] = (unchanged - measured) / max(1, measured)
    return frame.sort_values("gain_ns", ascending=False, kind="stable", ignore_index=True)


def gain_ns(summary: Summary, scenario: str, rank: int = -1) -> tuple[float, float]:
    """Gain of one scenario for the call of median length, in ns and as a share of it.

    Raises like `what_if`.
    """
    graph = graph_of(summary)
    if graph is None:
        return 0.0, 0.0
    plan = _as_it_was(graph)
    unchanged = _length(graph, plan)
    gain = unchanged - _length(graph, _changed(graph, plan, scenario, rank))
    return gain, gain / max(1.0, unchanged)


def _changed(graph: CallGraph, plan: _Plan, scenario: str, rank: int) -> _Plan:
    if scenario == RANK_AT_THE_MEDIAN:
        return _rank_at_the_median(graph, plan, rank)
    if scenario == ARRIVAL_ORDER:
        return _in_arrival_order(graph, plan)
    assert scenario == NO_TRANSFER_TIME, scenario
    return replace(plan, travel=np.minimum(plan.travel, 0.0))


def _as_it_was(graph: CallGraph) -> _Plan:
    first = np.flatnonzero(graph.previous < 0)
    gap = (graph.starts - np.where(graph.previous >= 0, graph.ends[graph.previous], 0)).astype(
        float
    )
    launch_start = np.full(len(graph.launch_rank), np.inf)
    np.minimum.at(launch_start, graph.launch_index[first], graph.starts[first].astype(float))
    gap[first] = graph.starts[first] - launch_start[graph.launch_index[first]]
    launch_end = np.zeros(len(graph.launch_rank))
    np.maximum.at(launch_end, graph.launch_index, graph.ends.astype(float))
    before = graph.launch_before
    origin = np.where(before >= 0, launch_end[before], graph.start_ns)
    duration = (graph.ends - graph.starts).astype(float)
    return _Plan(
        duration=duration,
        gap=gap,
        previous=graph.previous,
        travel=_travel(graph),
        launch_gap=launch_start - origin,
        shortest_wait=_shortest(graph.region, duration),
    )


def _shortest(groups: Ints, values: Floats) -> Floats:
    """For every element the smallest value of its group."""
    smallest = np.full(int(groups.max(initial=0)) + 1, np.inf)
    np.minimum.at(smallest, groups, values)
    chosen: Floats = smallest[groups]
    return chosen


def _travel(graph: CallGraph) -> Floats:
    """Time from the end of its send to the end of a wait; where the data was there before, the
    shortest seen on that link."""
    travel = np.zeros(len(graph))
    waits = np.flatnonzero(graph.send >= 0)
    if len(waits) == 0:
        return travel
    sends = graph.send[waits]
    elapsed = (graph.ends[waits] - graph.ends[sends]).astype(float)
    # A flag is seen before the clock is read that ends its send: such a wait ends within the send.
    within = (graph.starts[sends] < graph.ends[waits]) & (elapsed < 0)
    held = graph.is_held[waits] & (elapsed >= 0)
    link = graph.rank[sends] * 65536 + graph.rank[waits]
    _, link = np.unique(link, return_inverse=True)
    shortest = _shortest(link.astype(np.int64), np.where(held, elapsed, np.inf))
    shortest[~np.isfinite(shortest)] = 0.0
    travel[waits] = np.where(held | within, elapsed, np.minimum(shortest, elapsed))
    return travel


def _length(graph: CallGraph, plan: _Plan) -> float:
    """Run the graph; the time from the call's start to its last end."""
    _, ends = _run(graph, plan)
    return float(ends.max(initial=graph.start_ns)) - graph.start_ns


def _run(graph: CallGraph, plan: _Plan) -> tuple[Floats, Floats]:
    """Start and end of every span, in the order of their dependencies."""
    return _Run(graph, plan).all()


class _Run:
    """One pass over the spans in topological order (Kahn). Barriers and ends of launches are nodes
    after the spans.

    Plain lists: reading single elements of arrays is many times slower.
    """

    def __init__(self, graph: CallGraph, plan: _Plan) -> None:
        self.count = len(graph)
        self.num_barriers = int(graph.barrier.max(initial=-1)) + 1
        self.origin = float(graph.start_ns)
        self.previous: list[int] = plan.previous.tolist()
        self.duration: list[float] = plan.duration.tolist()
        self.gap: list[float] = plan.gap.tolist()
        self.travel: list[float] = plan.travel.tolist()
        self.launch_gap: list[float] = plan.launch_gap.tolist()
        self.shortest: list[float] = np.minimum(plan.shortest_wait, plan.duration).tolist()
        self.launch: list[int] = graph.launch_index.tolist()
        self.launch_before: list[int] = graph.launch_before.tolist()
        self.barrier: list[int] = graph.barrier.tolist()
        # A wait that ended before its send began was not released by it; it keeps its duration.
        is_released = (graph.send >= 0) & (graph.starts[graph.send] < graph.ends)
        self.send: list[int] = np.where(is_released, graph.send, -1).tolist()
        self.opening: list[float] = _opening_times(graph, self.num_barriers).tolist()
        self.recorded_order: list[int] = np.argsort(graph.starts, kind="stable").tolist()
        self.starts = [self.origin] * self.count
        self.ends = [self.origin] * self.count
        self.barrier_time = [self.origin] * self.num_barriers
        self.launch_end = [self.origin] * len(graph.launch_rank)
        total = self.count + self.num_barriers + len(graph.launch_rank)
        self.followers: list[list[int]] = [[] for _ in range(total)]
        self.missing = [0] * total
        self.members: list[list[int]] = [[] for _ in range(self.num_barriers)]
        self._connect()

    def _edge(self, before: int, after: int) -> None:
        self.followers[before].append(after)
        self.missing[after] += 1

    def _connect(self) -> None:
        launches = self.count + self.num_barriers
        for i in range(self.count):
            launch = self.launch[i]
            self._edge(i, launches + launch)
            starter = self.previous[i]
            if starter < 0 and self.launch_before[launch] >= 0:
                starter = launches + self.launch_before[launch]
            if starter >= 0:
                self._edge(starter, i)
            barrier = self.barrier[i]
            if barrier >= 0:
                self.members[barrier].append(i)
                self._edge(self.count + barrier, i)
                if starter >= 0:
                    self._edge(starter, self.count + barrier)
            elif self.send[i] >= 0:
                self._edge(self.send[i], i)

    def all(self) -> tuple[Floats, Floats]:
        ready = [node for node, missing in enumerate(self.missing) if missing == 0]
        self._follow(ready)
        # Clock errors and damaged records may make a circle. Its spans keep their lengths and go in
        # recorded order.
        for node in self.recorded_order:
            if self.missing[node] > 0:
                self.send[node] = self.barrier[node] = -1
                self.missing[node] = 0
                self._follow([node])
        return np.array(self.starts), np.array(self.ends)

    def _follow(self, ready: list[int]) -> None:
        """Finish these nodes, and all that then miss nothing."""
        while ready:
            node = ready.pop()
            self._finish(node)
            for follower in self.followers[node]:
                self.missing[follower] -= 1
                if self.missing[follower] == 0:
                    ready.append(follower)

    def _finish(self, node: int) -> None:
        if node >= self.count + self.num_barriers:
            return
        if node >= self.count:
            members = self.members[node - self.count]
            self.barrier_time[node - self.count] = max(self._start(i) for i in members)
            return
        start = self._start(node)
        end = start + self.duration[node]
        if self.barrier[node] >= 0:
            end = max(start, self.barrier_time[self.barrier[node]] + self.opening[node])
        elif self.send[node] >= 0:
            end = max(start + self.shortest[node], self.ends[self.send[node]] + self.travel[node])
        self.starts[node], self.ends[node] = start, end
        launch = self.launch[node]
        if end > self.launch_end[launch]:
            self.launch_end[launch] = end

    def _start(self, i: int) -> float:
        before = self.previous[i]
        if before >= 0:
            return self.ends[before] + self.gap[i]
        launch = self.launch[i]
        ended = self.launch_before[launch]
        origin = self.launch_end[ended] if ended >= 0 else self.origin
        return origin + self.launch_gap[launch] + self.gap[i]


def _opening_times(graph: CallGraph, num_barriers: int) -> Floats:
    """How long after the last one entered a member of a barrier left it."""
    last = np.full(num_barriers + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, graph.barrier, graph.starts)
    opening: Floats = (graph.ends - last[graph.barrier]).astype(float)
    return opening


def _ranks_worth_fixing(graph: CallGraph) -> list[int]:
    """The ranks that are waited for longest."""
    caused: dict[int, float] = defaultdict(float)
    for i in np.flatnonzero(graph.is_wait).tolist():
        if graph.peer[i] >= 0 and graph.peer[i] != graph.rank[i]:
            caused[int(graph.peer[i])] += float(graph.ends[i] - graph.starts[i])
    present = set(graph.rank.tolist())
    for rank in present:
        caused[rank] += 0.0
    ordered = sorted((rank for rank in caused if rank in present), key=lambda rank: -caused[rank])
    return ordered[:_MAX_RANKS] if len(present) > 1 else []


def _rank_at_the_median(graph: CallGraph, plan: _Plan, rank: int) -> _Plan:
    """Shrink what is longer with this rank than with the median of the others: its spans, gaps and
    start, and all spans that have to do with it."""
    duration, gap = plan.duration.copy(), plan.gap.copy()
    is_work = ~graph.is_wait
    for region in np.unique(graph.region).tolist():
        spans = is_work & (graph.region == region)
        _shrink(duration, spans, graph.rank, rank)
        _shrink(duration, spans, graph.peer, rank)
    _shrink(gap, graph.previous >= 0, graph.rank, rank)
    return replace(
        plan, duration=duration, gap=gap, launch_gap=_start_with_the_others(graph, plan, rank)
    )


def _shrink(values: Floats, chosen: NDArray[np.bool_], keys: Ints, key: int) -> None:
    """Scale the values of one key down to the median total of the other keys."""
    groups, inverse = np.unique(keys[chosen], return_inverse=True)
    sums = np.bincount(inverse, weights=np.maximum(values[chosen], 0), minlength=len(groups))
    others = sums[(groups != key) & (groups >= 0)]
    own = sums[groups == key]
    if len(others) == 0 or len(own) == 0 or own[0] <= 0:
        return
    factor = min(1.0, float(np.median(others)) / float(own[0]))
    values[chosen & (keys == key)] *= factor


def _start_with_the_others(graph: CallGraph, plan: _Plan, rank: int) -> Floats:
    """The rank's k-th launch starts as soon after the one before as the other ranks' median."""
    position: dict[int, int] = {}
    seen: dict[int, int] = defaultdict(int)
    for launch, owner in enumerate(graph.launch_rank.tolist()):
        position[launch] = seen[owner]
        seen[owner] += 1
    gaps = plan.launch_gap.copy()
    for launch, owner in enumerate(graph.launch_rank.tolist()):
        if owner != rank:
            continue
        others = [
            plan.launch_gap[other]
            for other, place in position.items()
            if place == position[launch] and graph.launch_rank[other] != rank
        ]
        if others:
            gaps[launch] = min(gaps[launch], float(np.median(others)))
    return gaps


def _in_arrival_order(graph: CallGraph, plan: _Plan) -> _Plan:
    """Let every track take its waits, each with the work after it, in the order in which their data
    arrives.

    Sends stay where they are: others may depend on their order.
    """
    _, ends = _run(graph, plan)
    arrival = np.where(graph.send >= 0, ends[graph.send] + plan.travel, -np.inf)
    previous, gap = plan.previous.copy(), plan.gap.copy()
    is_send = np.isin(
        graph.region, [i for i, name in enumerate(graph.region_categories) if name == "send"]
    )
    boundaries = np.flatnonzero(np.r_[True, graph.track[1:] != graph.track[:-1], True])
    for first, last in zip(boundaries[:-1].tolist(), boundaries[1:].tolist(), strict=True):
        _reorder(previous, gap, range(first, last), graph.send, is_send, arrival)
    return replace(plan, previous=previous, gap=gap)


def _reorder(
    previous: Ints,
    gap: Floats,
    track: range,
    send: Ints,
    is_send: NDArray[np.bool_],
    arrival: Floats,
) -> None:
    """Relink one track: units of a wait and the work after it, between sends, by arrival."""
    units: list[list[int]] = []
    chain: list[int] = []

    def flush() -> None:
        for unit in sorted(units, key=lambda unit: arrival[unit[0]]):
            chain.extend(unit)
        units.clear()

    for i in track:
        if send[i] >= 0:
            units.append([i])
        elif units and not is_send[i]:
            units[-1].append(i)
        else:
            flush()
            chain.append(i)
    flush()
    first = track.start
    if chain[0] != first:
        # The gap of what starts a track counts from the launch, the others' from the span before
        # them.
        gap[chain[0]], gap[first] = gap[first], gap[chain[0]]
    for before, after in itertools.pairwise(chain):
        previous[after] = before
    previous[chain[0]] = -1
