"""The critical path of a call, the chain of spans and waits that its length is made of; and waits
traced back to the regions that made their senders late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from kprof.analysis.calls import Call
from kprof.analysis.metric import metric
from kprof.analysis.replay.graph import Graph
from kprof.analysis.replay.load import ACROSS_RANKS, graph_of
from kprof.analysis.replay.spans import Spans
from kprof.analysis.summary import Summary, Table

# start_ns, end_ns, rank, block, warp, region, kind
_Segment = tuple[int, int, int, int, int, str, str]


@metric(one_clock=ACROSS_RANKS)
def critical_path(summary: Summary, call: Call | None = None) -> Table:
    """Walk back from the last event of a call: inside a track follow it, at a wait jump to what
    released it.

    Segments in the order of time, without holes: start_ns, end_ns, duration_ns, rank, block, warp,
    region, kind. `kind` is "span", "transfer" (a send is over and its wait is not), "gap" (between
    two regions of a track, or between two blocks that ran one after the other), "launch" (between a
    launch and the one before it on the rank, or before the rank's first event) and "release" (the
    last one entered a barrier, and it opens). The durations add up to the call's length. A wait
    that found its data there is not jumped from: the waiting track came late. Default: the call of
    median length. Raises ClockError on unaligned clocks.
    """
    graph = graph_of(summary, call)
    columns = ["start_ns", "end_ns", "rank", "block", "warp", "region", "kind"]
    if graph is None:
        return pd.DataFrame({name: [] for name in columns} | {"duration_ns": []})
    frame = pd.DataFrame(_walk(graph)[::-1], columns=columns)
    frame[["start_ns", "end_ns"]] += graph.spans.origin_ns
    frame["duration_ns"] = frame["end_ns"] - frame["start_ns"]
    return frame


@metric(one_clock=ACROSS_RANKS)
def critical_regions(summary: Summary, call: Call | None = None) -> Table:
    """Time on the critical path per rank and region: rank, region, kind, duration_ns, share; the
    longest first. Raises like `critical_path`."""
    path = critical_path(summary, call)
    total = max(1, int(path["duration_ns"].sum()))
    table = path.groupby(["rank", "region", "kind"])["duration_ns"].sum().reset_index()
    table["share"] = table["duration_ns"] / total
    return table.sort_values("duration_ns", ascending=False, kind="stable", ignore_index=True)


def _walk(graph: Graph) -> list[_Segment]:
    """Segments from the last to the first. `time` never grows, so the walk ends."""
    spans = graph.spans
    node = int(spans.end.argmax())
    time = int(spans.end[node])
    segments: list[_Segment] = []

    def add(until: int, at: int, region: str, kind: str) -> None:
        nonlocal time
        if until < time:
            place = int(spans.rank[at]), int(spans.block[at]), int(spans.warp[at])
            segments.append((until, time, *place, region, kind))
            time = until

    for _ in range(4 * len(spans)):
        name = spans.region_names[spans.region[node]]
        releaser = _releaser(graph, node, time)
        if releaser is not None:
            at, released_ns, kind = releaser
            add(released_ns, node, name, kind)
            node = at
            if kind == "transfer":
                continue
            time = min(time, int(spans.start[node]))
        else:
            add(int(spans.start[node]), node, name, "span")
        before = int(graph.before[node])
        kind = "gap"
        gap_name = "between regions" if spans.previous[node] >= 0 else "between blocks"
        if before < 0:
            before = _last_span(spans, int(graph.launch_before[spans.launch[node]]))
            kind, gap_name = "launch", "between launches"
        if before < 0:
            add(0, node, "before the first event", "launch")
            break
        add(int(spans.end[before]), node, gap_name, kind)
        node = before
    return segments


def _releaser(graph: Graph, node: int, time: int) -> tuple[int, int, str] | None:
    """What the wait at `node` waited for: the next span, the time of the jump, and its kind."""
    spans = graph.spans
    send = int(spans.send[node])
    if send >= 0 and graph.is_held[node] and int(spans.start[send]) < time:
        return send, min(int(spans.end[send]), time), "transfer"
    if graph.barrier[node] >= 0:
        members = (graph.barrier == graph.barrier[node]).nonzero()[0]
        last = int(members[spans.start[members].argmax()])
        entered = int(spans.start[last])
        # Clocks have errors: a rank may seem to leave before the last one enters.
        is_left = entered < time or time >= int(spans.end[node])
        if last != node and int(spans.start[node]) < entered and is_left:
            return last, min(entered, time), "release"
    return None


def _last_span(spans: Spans, launch: int) -> int:
    """The last span of a launch to end; -1 for no launch."""
    members = (spans.launch == launch).nonzero()[0][::-1]
    return int(members[spans.end[members].argmax()]) if len(members) else -1


# The longest waits have nearly all of the wait time. Chains of waiting ranks are followed this far.
_MAX_WAITS: Final = 4000
_MAX_HOPS: Final = 16
# rank, region, ns, and how many waits were followed to get there
_Charge = tuple[int, str, int, int]


@metric(one_clock=ACROSS_RANKS)
def delay_costs(summary: Summary, call: Call | None = None) -> Table:
    """Waits of a call traced back to the region that made the sender late (Boehme et al., doi
    10.1145/2934661).

    While a rank waits for a send that has not started, its sender is in some region: that region is
    charged with the overlap (direct). If the sender was itself waiting, the charge is passed on to
    what that wait was waiting for (propagated). Columns: rank, region, direct_ns, propagated_ns,
    cost_ns, share (of the late-sender time of the longest 4000 waits), the costliest first. Time
    without a span is "between regions" or "before the first event". Default: the call of median
    length. Raises ClockError on unaligned clocks.
    """
    graph = graph_of(summary, call)
    costs: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for rank, region, charged_ns, hops in _charges(graph.spans) if graph else ():
        costs[rank, region][hops > 0] += charged_ns
    table = pd.DataFrame(
        [(*place, *charged) for place, charged in costs.items()],
        columns=["rank", "region", "direct_ns", "propagated_ns"],
    )
    table["cost_ns"] = table["direct_ns"] + table["propagated_ns"]
    table["share"] = table["cost_ns"] / max(1, int(table["cost_ns"].sum()))
    return table.sort_values("cost_ns", ascending=False, kind="stable", ignore_index=True)


def _charges(spans: Spans) -> Iterator[_Charge]:
    """What the senders of the longest waits did until they sent."""
    has_send = spans.send >= 0
    sent_ns = np.where(has_send, np.minimum(spans.start[spans.send], spans.end), spans.start)
    late_ns = np.maximum(0, sent_ns - spans.start)
    for wait in np.argsort(-late_ns, kind="stable")[:_MAX_WAITS].tolist():
        if late_ns[wait] > 0:
            yield from _before(
                spans, int(spans.send[wait]), int(spans.start[wait]), int(sent_ns[wait]), 0
            )


def _before(spans: Spans, send: int, start: int, end: int, hops: int) -> Iterator[_Charge]:
    """What the track of the span `send` did during [start, end], before it."""
    rank, node = int(spans.rank[send]), int(spans.previous[send])
    while node >= 0 and end > start:
        began, ended = max(start, int(spans.start[node])), max(start, int(spans.end[node]))
        if ended < end:
            yield rank, "between regions", end - ended, hops
            end = ended
        if began < end:
            yield from _during(spans, node, began, end, hops)
            end = began
        node = int(spans.previous[node])
    if end > start:
        yield rank, "before the first event", end - start, hops


def _during(spans: Spans, node: int, start: int, end: int, hops: int) -> Iterator[_Charge]:
    """The span itself, or what it waited for."""
    send = int(spans.send[node])
    if send >= 0 and hops < _MAX_HOPS and spans.start[send] > spans.start[node]:
        sent_ns = min(end, int(spans.start[send]))
        if sent_ns > start:
            yield from _before(spans, send, start, sent_ns, hops + 1)
        start = max(start, sent_ns)
    if end > start:
        region = spans.region_names[spans.region[node]]
        yield int(spans.rank[node]), region, end - start, hops
