"""The critical path of a call: the chain of spans and waits that its length is made of."""

from __future__ import annotations

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
