"""The graph of one call, as the critical path, delay costs and what-if walk it.

What depends on what is worked out in `kprof.analysis.explain.graph`; here are its columns with
times on the clock of the trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from kprof.analysis.barriers import worst_bound_ns
from kprof.analysis.calls import Call, typical_call
from kprof.analysis.explain.graph import build_graph
from kprof.analysis.explain.spans import load_spans
from kprof.analysis.memo import memo
from kprof.errors import SelectionError

if TYPE_CHECKING:
    from kprof.analysis.summary import Summary

Ints = NDArray[np.int64]

ACROSS_RANKS: Final = "what depends on what across ranks"
# A call beyond this is walked too slowly in Python and would not fit a screen either.
MAX_SPANS: Final = 300_000


@dataclass(frozen=True)
class CallGraph:
    """Columns over the spans of a call, sorted by track and start; indices are -1 where there is
    nothing.

    `previous` is the span before on the same track and launch, `before` that span or, for a block
    that found no room at first, the last one of the block whose place it took, `send` the span that
    releases this wait, `is_held` says that the wait had to wait for it (and did not find the data
    there), `barrier` a number that all spans of one barrier share, `peer` the rank that a span has
    to do with (its own payload, else that of the wait before it), `launch_index` points into the
    `launch_*` columns, which are per (rank, launch).
    """

    start_ns: int
    end_ns: int
    starts: Ints
    ends: Ints
    rank: Ints
    block: Ints
    warp: Ints
    track: Ints
    region: Ints
    is_wait: NDArray[np.bool_]
    peer: Ints
    previous: Ints
    before: Ints
    send: Ints
    is_held: NDArray[np.bool_]
    barrier: Ints
    launch_index: Ints
    launch_rank: Ints
    launch_before: Ints
    region_names: tuple[str, ...]
    region_categories: tuple[str, ...]

    def __len__(self) -> int:
        """The number of spans."""
        return len(self.starts)

    def place(self, index: int) -> tuple[int, int, int]:
        """rank, block, warp of a span."""
        return int(self.rank[index]), int(self.block[index]), int(self.warp[index])


def graph_of(summary: Summary, call: Call | None = None) -> CallGraph | None:
    """The graph of a call, by default the one of median length; None when there are no events.
    Raises like `load_graph`."""
    if call is not None:
        return load_graph(summary, call)
    summary.trace.require_alignment(ACROSS_RANKS)
    typical = typical_call(summary)
    if typical is None:
        return None
    return load_graph(summary, typical)


# The critical path, delay costs and all replays walk the same graph.
@memo
def load_graph(summary: Summary, call: Call) -> CallGraph:
    """The graph of a call; raises ClockError on unaligned clocks and SelectionError when the call
    is too large."""
    summary.trace.require_alignment(ACROSS_RANKS)
    _check_size(summary, call)
    spans = load_spans(summary.trace.select(launches=call.launches), [call.ordinal])
    graph = build_graph(spans, worst_bound_ns(summary))
    starts, ends = spans.start + spans.origin_ns, spans.end + spans.origin_ns
    return CallGraph(
        start_ns=int(starts.min(initial=call.end_ns)),
        end_ns=int(ends.max(initial=call.start_ns)),
        starts=starts,
        ends=ends,
        rank=spans.rank,
        block=spans.block,
        warp=spans.warp,
        track=spans.track,
        region=spans.region,
        is_wait=graph.is_wait,
        peer=spans.peer,
        previous=spans.previous,
        before=graph.before,
        send=spans.send,
        is_held=graph.is_held & (spans.send >= 0),
        barrier=graph.barrier,
        launch_index=spans.launch,
        launch_rank=graph.launch_rank,
        launch_before=graph.launch_before,
        region_names=spans.region_names,
        region_categories=spans.categories,
    )


def _check_size(summary: Summary, call: Call) -> None:
    listed = ", ".join(str(launch) for launch in call.launches) or "NULL"
    table = summary.frame(
        "SELECT coalesce(CAST(sum(events) AS BIGINT), 0) AS n FROM tracks WHERE launch IN "
        f"({listed})"
    )
    count = int(table["n"].iloc[0])
    if count > MAX_SPANS:
        raise SelectionError(
            f"the call has {count} spans, more than the {MAX_SPANS} that its dependencies are "
            "worked out for; "
            "select fewer blocks or ranks"
        )
