"""What a call would gain from a few fixed changes. Findings search for others."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from kprof.analysis.calls import Call
from kprof.analysis.metric import metric
from kprof.analysis.replay.columns import turns_of
from kprof.analysis.replay.design import in_order_of_arrival, without_transfers
from kprof.analysis.replay.graph import Graph
from kprof.analysis.replay.load import ACROSS_RANKS, graph_of
from kprof.analysis.replay.replay import Replay
from kprof.analysis.replay.spans import Bools, Floats, Ints, Spans
from kprof.analysis.replay.turns import Change, Edit
from kprof.analysis.summary import Summary, Table

# Only the ranks that the others wait for longest are replayed.
_MAX_RANKS: Final = 8
_COLUMNS: Final = ["scenario", "rank", "predicted_ns"]


@metric(one_clock=ACROSS_RANKS)
def what_if(summary: Summary, call: Call | None = None) -> Table:
    """Predicted length of a call with one thing changed, the largest gain first.

    Columns: scenario, rank (or -1), predicted_ns, gain_ns, gain_share, measured_ns, replay_error
    (of the unchanged replay, relative: 0 unless records contradict each other). Scenarios: "rank at
    the median" (its regions, its gaps and its start no longer than the median of the other ranks,
    and so the work that others have with it), "waits in arrival order" (a track takes next what is
    there first), "no transfer time" (data is there when its send ends). Default: the call of median
    length. Raises ClockError on unaligned clocks.
    """
    graph = graph_of(summary, call)
    if graph is None:
        gains = ["gain_ns", "gain_share", "measured_ns", "replay_error"]
        return pd.DataFrame({name: [] for name in _COLUMNS + gains})
    ranks = _ranks_worth_fixing(graph.spans)
    medians = [_rank_at_the_median(graph, rank) for rank in ranks]
    replay = Replay(graph)
    ends = replay.call_ends([Edit(), *medians, without_transfers(graph)])[:, 0]
    unchanged, *of_ranks, at_once = ends.tolist()
    reordered = in_order_of_arrival(graph, replay)
    in_order = unchanged if reordered is None else float(reordered.call_ends([Edit()])[0, 0])
    rows = [
        *(("rank at the median", rank, end) for rank, end in zip(ranks, of_ranks, strict=True)),
        ("waits in arrival order", -1, in_order),
        ("no transfer time", -1, at_once),
    ]
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    measured = int(graph.call_end[0])
    frame["gain_ns"] = unchanged - frame["predicted_ns"]
    frame["gain_share"] = frame["gain_ns"] / max(1.0, unchanged)
    frame["measured_ns"] = measured
    frame["replay_error"] = (unchanged - measured) / max(1, measured)
    return frame.sort_values("gain_ns", ascending=False, kind="stable", ignore_index=True)


def _ranks_worth_fixing(spans: Spans) -> list[int]:
    """The ranks that are waited for longest."""
    present = np.unique(spans.rank)
    is_foreign = spans.is_of("wait", "sync") & (spans.peer != spans.rank) & (spans.peer >= 0)
    caused = np.bincount(
        spans.peer[is_foreign],
        weights=(spans.end - spans.start)[is_foreign],
        minlength=int(present.max()) + 1,
    )
    ordered = sorted(present.tolist(), key=lambda rank: -caused[rank])
    return ordered[:_MAX_RANKS] if len(present) > 1 else []


def _rank_at_the_median(graph: Graph, rank: int) -> Edit:
    """Shrink what is longer with this rank than with the median of the others: its spans, gaps and
    start, and all spans that have to do with it."""
    spans = graph.spans
    own, gap = graph.own_ns.copy(), graph.gap_ns.copy()
    for region in np.unique(spans.region).tolist():
        chosen = ~graph.is_wait & (spans.region == region)
        _shrink(own, chosen, spans.rank, rank)
        _shrink(own, chosen, spans.peer, rank)
    _shrink(gap, spans.previous >= 0, spans.rank, rank)
    return Edit(
        own=_change(graph.own_ns, own),
        gap=_change(graph.gap_ns, gap),
        launch_gap=_change(graph.launch_gap_ns, _start_with_the_others(graph, rank)),
    )


def _change(before: Floats, after: Floats) -> Change:
    at = np.flatnonzero(before != after)
    return Change(at, (before - after)[at])


def _shrink(values: Floats, chosen: Bools, keys: Ints, key: int) -> None:
    """Scale the values of one key down to the median total of the other keys, in place."""
    groups, inverse = np.unique(keys[chosen], return_inverse=True)
    sums = np.bincount(inverse, weights=np.maximum(values[chosen], 0), minlength=len(groups))
    others, own = sums[(groups != key) & (groups >= 0)], sums[groups == key]
    if len(others) and len(own) and own[0] > 0:
        values[chosen & (keys == key)] *= min(1.0, float(np.median(others)) / float(own[0]))


def _start_with_the_others(graph: Graph, rank: int) -> Floats:
    """The rank's k-th launch starts as soon after the one before as the other ranks' median."""
    position = turns_of(graph.launch_rank)
    gaps = graph.launch_gap_ns.copy()
    for launch in np.flatnonzero(graph.launch_rank == rank):
        is_like = (position == position[launch]) & (graph.launch_rank != rank)
        if is_like.any():
            gaps[launch] = min(gaps[launch], np.median(graph.launch_gap_ns[is_like]))
    return gaps
