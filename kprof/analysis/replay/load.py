"""Loads the graph of one call, or of as many calls of a run as can be replayed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kprof.analysis.barriers import worst_bound_ns
from kprof.analysis.calls import (
    Call,
    call_lengths,
    call_numbers,
    launches_of_calls,
    typical_call,
)
from kprof.analysis.metric import memo
from kprof.analysis.replay.elastic import begun_together
from kprof.analysis.replay.graph import Graph, build_graph
from kprof.analysis.replay.spans import load_spans
from kprof.analysis.summary import Summary, sql_list
from kprof.analysis.warmup import warm_up_of
from kprof.errors import CallTooLargeError, SelectionError
from kprof.trace import Trace

ACROSS_RANKS: Final = "what depends on what across ranks"
# The critical path and delay costs walk single spans in Python, too slowly for larger calls.
MAX_SPANS_WALKED: Final = 300_000
# Calls are replayed together up to this many spans: the table of a replay has a row for each.
MAX_SPANS: Final = 400_000
# A single call may have more. Beyond this a replay takes minutes, and too much memory.
MAX_SPANS_OF_CALL: Final = 1_500_000


@dataclass(frozen=True)
class ReplayedCalls:
    """The graph of the calls that are replayed: their ordinals, the calls left out as warm-up, and
    how many calls the trace has."""

    graph: Graph
    ordinals: tuple[int, ...]
    warm_up: tuple[int, ...]
    num_calls: int


def graph_of(summary: Summary, call: Call | None = None) -> Graph | None:
    """The graph of a call, by default the one of median length; None if it has no spans.

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
    (count,) = summary.row(f"SELECT sum(events) FROM tracks WHERE launch IN ({launches})")
    if (count or 0) > MAX_SPANS_WALKED:
        raise SelectionError(
            f"the call has {count} spans, more than the {MAX_SPANS_WALKED} that its dependencies "
            "are worked out for; select fewer blocks or ranks"
        )
    spans = load_spans(_part(summary, call.launches), [call.ordinal], call_numbers(summary))
    return build_graph(spans, worst_bound_ns(summary))


def _part(summary: Summary, launches: Sequence[int]) -> Trace:
    """The trace of some launches: no others are read and paired. All of it where that is faster
    than to open a part."""
    trace = summary.trace
    return trace if trace.num_events() <= MAX_SPANS // 4 else trace.select(launches=launches)


@memo
def calls_to_replay(summary: Summary) -> ReplayedCalls | None:
    """The calls of a trace that are replayed: all but warm-ups, or a sample of them by length.

    None if the trace has no calls. Raises SelectionError if a call is too large.
    """
    lengths = call_lengths(summary)
    ordinals = [int(ordinal) for ordinal in lengths.index.tolist()]
    if len(ordinals) == 0:
        return None
    is_selection = summary.trace.selection.launches is not None
    warm_up = warm_up_of(launches_of_calls(summary), lengths, is_selection=is_selection)
    (num_spans,) = summary.row("SELECT coalesce(sum(events), 0) FROM tracks")
    spans_per_call = max(1.0, float(num_spans) / len(ordinals))
    if spans_per_call > MAX_SPANS_OF_CALL:
        raise CallTooLargeError(
            f"a call has {spans_per_call:,.0f} events, more than the {MAX_SPANS_OF_CALL:,} that "
            "are replayed",
            "select ranks that exchange data, or blocks (--ranks, --blocks)",
        )
    steady = lengths.drop(list(warm_up))
    sample = _sample(steady.to_numpy(dtype=float), spans_per_call)
    wanted = [int(steady.index[position]) for position in sample]
    trace = summary.trace
    if len(wanted) < len(ordinals):
        starts = launches_of_calls(summary)
        launches = starts.loc[starts["ordinal"].isin(wanted), "launch"]
        trace = _part(summary, sorted({int(launch) for launch in launches}))
    spans = load_spans(trace, wanted, call_numbers(summary))
    if not summary.trace.is_on_one_clock:
        spans = begun_together(spans)
    graph = build_graph(spans, worst_bound_ns(summary))
    return ReplayedCalls(graph, tuple(wanted), warm_up, len(ordinals))


def _sample(lengths: np.ndarray, spans_per_call: float) -> list[int]:
    """The positions of all calls, or of as many as fit: evenly spaced by length, with the longest
    call."""
    most = max(1, int(MAX_SPANS / spans_per_call))
    if len(lengths) <= most:
        return list(range(len(lengths)))
    order = np.argsort(lengths, kind="stable")
    positions = np.unique(np.linspace(len(order) - 1, 0, most).round().astype(int))
    return sorted(int(order[position]) for position in positions)
