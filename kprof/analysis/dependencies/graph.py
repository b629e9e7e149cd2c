"""The graph of one call, as the critical path, delay costs and what-if walk it."""

from __future__ import annotations

from typing import Final

from kprof.analysis.barriers import worst_bound_ns
from kprof.analysis.calls import Call, typical_call
from kprof.analysis.explain.graph import Graph, build_graph
from kprof.analysis.explain.spans import load_spans
from kprof.analysis.memo import memo
from kprof.analysis.summary import Summary, sql_list
from kprof.errors import SelectionError

ACROSS_RANKS: Final = "what depends on what across ranks"
# A call beyond this is walked too slowly in Python and would not fit a screen either.
MAX_SPANS: Final = 300_000


def graph_of(summary: Summary, call: Call | None = None) -> Graph | None:
    """The graph of a call, by default the one of median length; None when it has no spans.

    Its times are from `spans.origin_ns` on. Raises ClockError on unaligned clocks and
    SelectionError when the call is too large.
    """
    summary.trace.require_alignment(ACROSS_RANKS)
    call = call or typical_call(summary)
    graph = None if call is None else _load_graph(summary, call)
    return graph if graph is not None and len(graph.spans) else None


# The critical path, delay costs and all replays walk the same graph.
@memo
def _load_graph(summary: Summary, call: Call) -> Graph:
    launches = sql_list(call.launches)
    table = summary.frame(f"SELECT sum(events) AS n FROM tracks WHERE launch IN ({launches})")
    count = int(table.fillna(0)["n"].iloc[0])
    if count > MAX_SPANS:
        raise SelectionError(
            f"the call has {count} spans, more than the {MAX_SPANS} that its dependencies are "
            "worked out for; select fewer blocks or ranks"
        )
    spans = load_spans(summary.trace.select(launches=call.launches), [call.ordinal])
    return build_graph(spans, worst_bound_ns(summary))
