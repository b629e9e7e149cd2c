"""Waits traced back to the regions that made their senders late."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np

from kprof.analysis.calls import Call
from kprof.analysis.metric import metric
from kprof.analysis.replay.load import ACROSS_RANKS, graph_of
from kprof.analysis.replay.spans import Spans
from kprof.analysis.summary import Summary, Table

# The longest waits have nearly all of the wait time. Chains of waiting ranks are followed this far.
_MAX_WAITS: Final = 4000
_MAX_HOPS: Final = 16


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
    import pandas as pd

    columns = ["rank", "region", "direct_ns", "propagated_ns"]
    graph = graph_of(summary, call)
    costs = _Tracer(graph.spans).charge_all() if graph else {}
    rows = [(rank, region, direct, passed) for (rank, region), (direct, passed) in costs.items()]
    table = pd.DataFrame(rows, columns=columns)
    table["cost_ns"] = table["direct_ns"] + table["propagated_ns"]
    table["share"] = table["cost_ns"] / max(1, int(table["cost_ns"].sum()))
    return table.sort_values("cost_ns", ascending=False, kind="stable", ignore_index=True)


class _Tracer:
    """Follows waits to what their senders did meanwhile."""

    def __init__(self, spans: Spans) -> None:
        self.spans = spans
        self.costs: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])

    def charge_all(self) -> dict[tuple[int, str], list[int]]:
        spans = self.spans
        late_until = np.where(spans.send >= 0, np.minimum(spans.start[spans.send], spans.end), 0)
        late = np.where(spans.send >= 0, np.maximum(0, late_until - spans.start), 0)
        for wait in np.argsort(-late, kind="stable")[:_MAX_WAITS].tolist():
            if late[wait] > 0:
                self._charge(
                    int(spans.send[wait]), int(spans.start[wait]), int(late_until[wait]), 0
                )
        return dict(self.costs)

    def _charge(self, send: int, start: int, end: int, hops: int) -> None:
        """Charge [start, end], which precedes the span `send`, to what its track did then."""
        spans, rank = self.spans, int(self.spans.rank[send])
        node = int(spans.previous[send])
        while node >= 0 and end > start:
            over = max(start, int(spans.end[node]))
            if over < end:
                self._add(rank, "between regions", end - over, hops)
                end = over
            began = max(start, int(spans.start[node]))
            if began < end:
                self._charge_span(node, began, end, hops)
                end = began
            node = int(spans.previous[node])
        if end > start:
            self._add(rank, "before the first event", end - start, hops)

    def _charge_span(self, node: int, start: int, end: int, hops: int) -> None:
        spans = self.spans
        send = int(spans.send[node])
        if send >= 0 and hops < _MAX_HOPS and spans.start[send] > spans.start[node]:
            late_until = min(end, int(spans.start[send]))
            if late_until > start:
                self._charge(send, start, late_until, hops + 1)
            start = max(start, late_until)
        if end > start:
            name = spans.region_names[spans.region[node]]
            self._add(int(spans.rank[node]), name, end - start, hops)

    def _add(self, rank: int, region: str, duration_ns: int, hops: int) -> None:
        self.costs[rank, region][0 if hops == 0 else 1] += duration_ns
