"""Waits traced back to the regions that made their senders late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from kprof.analysis.calls import Call
from kprof.analysis.metric import metric
from kprof.analysis.replay.load import ACROSS_RANKS, graph_of
from kprof.analysis.replay.spans import Spans
from kprof.analysis.summary import Summary, Table

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
