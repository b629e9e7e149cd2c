"""The critical path of a call: the chain of spans and waits that its length is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kprof.analysis.calls import Call
from kprof.analysis.dependencies.graph import ACROSS_RANKS, CallGraph, graph_of
from kprof.analysis.metric import metric

if TYPE_CHECKING:
    import pandas as pd

    from kprof.analysis.summary import Summary


@dataclass(frozen=True)
class _Segment:
    start_ns: int
    end_ns: int
    rank: int
    block: int
    warp: int
    region: str
    kind: str


@metric(one_clock=ACROSS_RANKS)
def critical_path(summary: Summary, call: Call | None = None) -> pd.DataFrame:
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
    import pandas as pd

    graph = graph_of(summary, call)
    columns = ["start_ns", "end_ns", "rank", "block", "warp", "region", "kind"]
    if graph is None:
        return pd.DataFrame({name: [] for name in columns} | {"duration_ns": []})
    segments = _walk(graph)[::-1]
    frame = pd.DataFrame([vars(segment) for segment in segments], columns=columns)
    frame["duration_ns"] = frame["end_ns"] - frame["start_ns"]
    return frame


@metric(one_clock=ACROSS_RANKS)
def critical_regions(summary: Summary, call: Call | None = None) -> pd.DataFrame:
    """Time on the critical path per rank and region: rank, region, kind, duration_ns, share; the
    longest first. Raises like `critical_path`."""
    path = critical_path(summary, call)
    total = max(1, int(path["duration_ns"].sum()))
    table = path.groupby(["rank", "region", "kind"])["duration_ns"].sum().reset_index()
    table["share"] = table["duration_ns"] / total
    return table.sort_values("duration_ns", ascending=False, kind="stable", ignore_index=True)


def _walk(graph: CallGraph) -> list[_Segment]:
    """Segments from the last to the first; `time` never grows, so that the walk ends."""
    if len(graph) == 0:
        return []
    last_of_launch = _last_spans(graph)
    node = int(graph.ends.argmax())
    time = graph.end_ns
    segments: list[_Segment] = []

    def add(until: int, at: int, region: str, kind: str) -> None:
        nonlocal time
        if until < time:
            segments.append(_Segment(until, time, *graph.place(at), region, kind))
            time = until

    for _ in range(4 * len(graph)):
        name = graph.region_names[graph.region[node]]
        releaser = _releaser(graph, node, time)
        if releaser is not None:
            at, released_ns, kind = releaser
            add(released_ns, node, name, kind)
            if kind == "release":
                node = at
                time = min(time, int(graph.starts[node]))
            else:
                node = at
                continue
        else:
            add(int(graph.starts[node]), node, name, "span")
        before = int(graph.before[node])
        kind, gap_name = "gap", "between regions"
        if graph.previous[node] < 0:
            gap_name = "between blocks"
        if before < 0:
            before = last_of_launch.get(int(graph.launch_before[graph.launch_index[node]]), -1)
            kind, gap_name = "launch", "between launches"
        if before < 0:
            add(graph.start_ns, node, "before the first event", "launch")
            break
        add(int(graph.ends[before]), node, gap_name, kind)
        node = before
    return segments


def _releaser(graph: CallGraph, node: int, time: int) -> tuple[int, int, str] | None:
    """What the wait at `node` waited for: the next span, the time of the jump, and its kind."""
    start = int(graph.starts[node])
    send = int(graph.send[node])
    if send >= 0 and graph.is_held[node] and int(graph.starts[send]) < time:
        return send, min(int(graph.ends[send]), time), "transfer"
    if graph.barrier[node] >= 0:
        members = (graph.barrier == graph.barrier[node]).nonzero()[0]
        last = int(members[graph.starts[members].argmax()])
        entered = int(graph.starts[last])
        # By its own clock a rank may leave before the last one enters: clocks are known within
        # their error.
        is_left = entered < time or time >= int(graph.ends[node])
        if last != node and start < entered and is_left:
            return last, min(entered, time), "release"
    return None


def _last_spans(graph: CallGraph) -> dict[int, int]:
    """The span that ends last of every launch."""
    last: dict[int, int] = {}
    for i, launch in enumerate(graph.launch_index.tolist()):
        if launch not in last or graph.ends[i] >= graph.ends[last[launch]]:
            last[launch] = i
    return last
