"""What would make a run shorter: the explanation of a trace.

    explanation = explain_trace(trace)
    for finding in explanation.findings:
        print(finding.share, finding.kind, finding.ranks)

Calls in which a kernel warms up are left out (`first_calls.py`). Of captures with more
events than are replayed in reasonable time, calls are taken by their lengths, from the shortest to
the longest: typical and slow ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kprof.analysis.barriers import worst_bound_ns
from kprof.analysis.calls import call_lengths, launches_of_calls
from kprof.analysis.explain.engine import LEAST_GAIN, Explanation, explain
from kprof.analysis.explain.finding import ExplainedFinding, FindingKind, finding_of, sources_of
from kprof.analysis.explain.graph import Graph, build_graph
from kprof.analysis.explain.limits import Limit
from kprof.analysis.explain.spans import load_spans
from kprof.analysis.first_calls import warm_up_of
from kprof.analysis.memo import memo
from kprof.analysis.summary import Summary
from kprof.errors import SelectionError
from kprof.trace import Trace

# More spans are not replayed at once: the table of a replay has a row for each.
MAX_SPANS: Final = 400_000
# One call may have more, for there is no less than one; beyond this a replay takes minutes and more
# memory than it may.
MAX_SPANS_OF_CALL: Final = 1_500_000


@dataclass(frozen=True)
class TraceExplanation:
    """What pays, in order, and what the design costs on top (`limits.py`).

    `ordinals` are the calls that were looked at, `warm_up` those left out as such, of `num_calls`;
    `total_ns` is what those looked at took together. `below` is a rank that has many more items
    than the others, where that costs less than a finding must; all that is no finding costs less
    than `least_share`.
    """

    findings: tuple[ExplainedFinding, ...] = ()
    limits: tuple[Limit, ...] = ()
    ordinals: tuple[int, ...] = ()
    warm_up: tuple[int, ...] = ()
    num_calls: int = 0
    total_ns: float = 0.0
    below: ExplainedFinding | None = None
    least_share: float = LEAST_GAIN


def explain_trace(trace: Trace) -> TraceExplanation:
    """Explain a trace; raises ClockError where ranks are not on one clock."""
    return explain_summary(Summary.of(trace))


@memo
def explain_summary(
    summary: Summary, left_out: frozenset[FindingKind] = frozenset()
) -> TraceExplanation:
    """Explain a trace that is summarised already; one rank by itself needs no common clock.

    Findings of the kinds `left_out` are not looked for: others get what those would explain.

    Raises ClockError, and SelectionError where one call has more events than are replayed.
    """
    calls_seen = calls_to_replay(summary)
    if calls_seen is None:
        return TraceExplanation()
    found = explain(calls_seen.graph, calls_seen.bound_ns, sources_of(left_out))
    return calls_seen.explained(found)


@dataclass(frozen=True)
class ReplayedCalls:
    """The graph of the calls that are replayed, and the fields of `TraceExplanation` about them."""

    graph: Graph
    bound_ns: float
    ordinals: tuple[int, ...]
    warm_up: tuple[int, ...]
    num_calls: int

    def explained(self, explanation: Explanation) -> TraceExplanation:
        """An explanation of these calls, with their numbers."""
        below = explanation.below
        return TraceExplanation(
            tuple(finding_of(explanation, part) for part in explanation.parts),
            explanation.limits,
            self.ordinals,
            self.warm_up,
            self.num_calls,
            float(explanation.lengths_ns.sum()),
            None if below is None else finding_of(explanation, below),
            explanation.least_share,
        )


@memo
def calls_to_replay(summary: Summary) -> ReplayedCalls | None:
    """The calls of a trace that are replayed; None where it has none. Raises like
    `explain_summary`."""
    summary.trace.require_alignment("what would make the run shorter")
    lengths = call_lengths(summary)
    ordinals = [int(ordinal) for ordinal in lengths.index.tolist()]
    if len(ordinals) == 0:
        return None
    is_selection = summary.trace.selection.launches is not None
    warm_up = warm_up_of(launches_of_calls(summary), lengths, is_selection=is_selection)
    spans_per_call = _spans_per_call(summary, len(ordinals))
    if spans_per_call > MAX_SPANS_OF_CALL:
        raise SelectionError(
            f"a call has {spans_per_call:,.0f} events, more than the {MAX_SPANS_OF_CALL:,} that "
            "are replayed; select ranks that exchange data, or blocks (--ranks, --blocks)"
        )
    steady = lengths.drop(list(warm_up))
    sample = _sample(steady.to_numpy(dtype=float), spans_per_call)
    wanted = [int(steady.index[position]) for position in sample]
    bound_ns = worst_bound_ns(summary)
    spans = load_spans(_part(summary, wanted, len(ordinals)), wanted)
    graph = build_graph(spans, bound_ns)
    return ReplayedCalls(graph, bound_ns, tuple(wanted), warm_up, len(ordinals))


def _spans_per_call(summary: Summary, num_calls: int) -> float:
    table = summary.frame("SELECT coalesce(sum(events), 0) AS events FROM tracks")
    return max(1.0, float(table["events"].iloc[0]) / num_calls)


def _part(summary: Summary, ordinals: Sequence[int], num_calls: int) -> Trace:
    """The launches of some calls, so that no others are read and paired.

    The whole trace where none is left out.
    """
    if len(ordinals) == num_calls:
        return summary.trace
    starts = launches_of_calls(summary)
    launches = starts.loc[starts["ordinal"].isin(ordinals), "launch"]
    return summary.trace.select(launches=sorted({int(launch) for launch in launches}))


def _sample(lengths: np.ndarray, spans_per_call: float) -> list[int]:
    """All calls, or as many as fit, evenly over the order of their lengths and with the longest.

    In their own order.
    """
    most = max(1, int(MAX_SPANS / spans_per_call))
    if len(lengths) <= most:
        return list(range(len(lengths)))
    order = np.argsort(lengths, kind="stable")
    positions = np.unique(np.linspace(len(order) - 1, 0, most).round().astype(int))
    return sorted(int(order[position]) for position in positions)
