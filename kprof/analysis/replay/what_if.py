"""Replay a call with something changed: what would its end be if a rank were like the others, or
transfers took no time?

The graph of the call is run again. Spans keep their durations, tracks their gaps, a wait ends when
its send has ended and the data had its time to travel; unchanged, that gives the measured call, and
the difference between the two is the replay's error.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from kprof.analysis.calls import Call
from kprof.analysis.metric import metric
from kprof.analysis.replay.columns import firsts_of, shortest_of, turns_of
from kprof.analysis.replay.graph import Graph, is_released, moved
from kprof.analysis.replay.load import ACROSS_RANKS, graph_of
from kprof.analysis.replay.replay import Edit, Replay
from kprof.analysis.replay.spans import Bools, Floats, Ints, Spans
from kprof.analysis.summary import Summary, Table

# Replays of single ranks are worth it for those that make the others wait.
_MAX_RANKS: Final = 8

RANK_AT_THE_MEDIAN: Final = "rank at the median"
ARRIVAL_ORDER: Final = "waits in arrival order"
NO_TRANSFER_TIME: Final = "no transfer time"


@metric(one_clock=ACROSS_RANKS)
def what_if(summary: Summary, call: Call | None = None) -> Table:
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
    graph = _as_recorded(graph)
    unchanged = _length(graph)
    ranks = _ranks_worth_fixing(graph.spans)
    changed = [
        *((RANK_AT_THE_MEDIAN, rank, _rank_at_the_median(graph, rank)) for rank in ranks),
        (ARRIVAL_ORDER, -1, _in_arrival_order(graph)),
        (NO_TRANSFER_TIME, -1, _without_transfers(graph)),
    ]
    frame = pd.DataFrame(
        [(name, rank, _length(other)) for name, rank, other in changed], columns=columns
    )
    measured = int(graph.call_end[0])
    frame["gain_ns"] = unchanged - frame["predicted_ns"]
    frame["gain_share"] = frame["gain_ns"] / max(1.0, unchanged)
    frame["measured_ns"] = measured
    frame["replay_error"] = (unchanged - measured) / max(1, measured)
    return frame.sort_values("gain_ns", ascending=False, kind="stable", ignore_index=True)


def _length(graph: Graph) -> float:
    """Run the graph; the time from the call's start to its last end."""
    return float(Replay(graph).call_ends([Edit()])[0, 0])


def _as_recorded(graph: Graph) -> Graph:
    """The graph with locks and places in their recorded order. A wait is over after a look at its
    flag where its data is there by then."""
    spans = graph.spans
    since_launch = spans.start - shortest_of(spans.launch, spans.start.astype(float))
    graph = replace(
        graph,
        before=spans.previous,
        releaser=np.where(is_released(spans), spans.send, -1),
        gap_ns=np.where(spans.previous >= 0, graph.gap_ns, since_launch),
        travel_ns=np.where(spans.send >= 0, _travel(graph), graph.travel_ns),
        queue=np.full_like(graph.queue, -1),
        waves=(),
    )
    return replace(graph, own_ns=_own(graph, _durations(spans)))


def _durations(spans: Spans) -> Floats:
    return (spans.end - spans.start).astype(float)


def _own(graph: Graph, duration: Floats) -> Floats:
    """What spans of these durations take by themselves: a wait no more than the shortest one of its
    region, a barrier nothing."""
    look = shortest_of(graph.spans.region, _durations(graph.spans))
    own = np.where(graph.releaser >= 0, np.minimum(look, duration), duration)
    return np.where(graph.barrier >= 0, 0.0, own)


def _travel(graph: Graph) -> Floats:
    """Time from the end of its send to the end of a wait; where the data was there before, the
    shortest seen on that link."""
    spans = graph.spans
    travel = np.zeros(len(spans))
    waits = np.flatnonzero(spans.send >= 0)
    if len(waits) == 0:
        return travel
    sends = spans.send[waits]
    elapsed = (spans.end[waits] - spans.end[sends]).astype(float)
    # A flag is seen before the clock is read that ends its send: such a wait ends within the send.
    within = (spans.start[sends] < spans.end[waits]) & (elapsed < 0)
    held = graph.is_held[waits] & (elapsed >= 0)
    _, link = np.unique(spans.rank[sends] << 16 | spans.rank[waits], return_inverse=True)
    shortest = shortest_of(link, np.where(held, elapsed, np.inf))
    shortest[~np.isfinite(shortest)] = 0.0
    travel[waits] = np.where(held | within, elapsed, np.minimum(shortest, elapsed))
    return travel


def _without_transfers(graph: Graph) -> Graph:
    at_once = np.minimum(graph.travel_ns, 0.0)
    return replace(graph, travel_ns=np.where(graph.barrier < 0, at_once, graph.travel_ns))


def _ranks_worth_fixing(spans: Spans) -> list[int]:
    """The ranks that are waited for longest."""
    present = np.unique(spans.rank)
    is_foreign = spans.is_of("wait", "sync") & (spans.peer != spans.rank) & (spans.peer >= 0)
    caused = np.bincount(
        spans.peer[is_foreign],
        weights=_durations(spans)[is_foreign],
        minlength=int(present.max()) + 1,
    )
    ordered = sorted(present.tolist(), key=lambda rank: -caused[rank])
    return ordered[:_MAX_RANKS] if len(present) > 1 else []


def _rank_at_the_median(graph: Graph, rank: int) -> Graph:
    """Shrink what is longer with this rank than with the median of the others: its spans, gaps and
    start, and all spans that have to do with it."""
    spans = graph.spans
    duration, gap = _durations(spans), graph.gap_ns.copy()
    for region in np.unique(spans.region).tolist():
        chosen = ~graph.is_wait & (spans.region == region)
        _shrink(duration, chosen, spans.rank, rank)
        _shrink(duration, chosen, spans.peer, rank)
    _shrink(gap, spans.previous >= 0, spans.rank, rank)
    return replace(
        graph,
        own_ns=_own(graph, duration),
        gap_ns=gap,
        launch_gap_ns=_start_with_the_others(graph, rank),
    )


def _shrink(values: Floats, chosen: Bools, keys: Ints, key: int) -> None:
    """Scale the values of one key down to the median total of the other keys."""
    groups, inverse = np.unique(keys[chosen], return_inverse=True)
    sums = np.bincount(inverse, weights=np.maximum(values[chosen], 0), minlength=len(groups))
    others = sums[(groups != key) & (groups >= 0)]
    own = sums[groups == key]
    if len(others) == 0 or len(own) == 0 or own[0] <= 0:
        return
    factor = min(1.0, float(np.median(others)) / float(own[0]))
    values[chosen & (keys == key)] *= factor


def _start_with_the_others(graph: Graph, rank: int) -> Floats:
    """The rank's k-th launch starts as soon after the one before as the other ranks' median."""
    position = turns_of(graph.launch_rank)
    gaps = graph.launch_gap_ns.copy()
    for launch in np.flatnonzero(graph.launch_rank == rank):
        is_like = (position == position[launch]) & (graph.launch_rank != rank)
        if is_like.any():
            gaps[launch] = min(gaps[launch], np.median(graph.launch_gap_ns[is_like]))
    return gaps


def _in_arrival_order(graph: Graph) -> Graph:
    """Let every track take its waits, each with the work after it, in the order in which their data
    arrives.

    Sends, and what is before the first wait after one, stay where they are: others may depend on
    their order.
    """
    spans = graph.spans
    ends = Replay(graph).span_ends(Edit())
    is_wait, number = spans.send >= 0, np.arange(len(spans))
    stays = (spans.is_of("send") & ~is_wait) | (spans.previous < 0)
    wait = np.maximum.accumulate(np.where(is_wait, number, -1))
    since = np.maximum.accumulate(np.where(stays, number, 0))
    arrival = np.where(wait >= since, ends[spans.send[wait]] + graph.travel_ns[wait], -np.inf)
    chain = np.lexsort((arrival, np.cumsum(stays)))
    at, gap = np.argsort(chain), graph.gap_ns[chain]
    # The gap of what starts a track counts from the launch, the others' from the span before.
    first = firsts_of(spans.track)
    gap[at[first]], gap[first] = gap[first], gap[at[first]]
    return replace(moved(graph, at), gap_ns=gap)
