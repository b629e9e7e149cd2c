"""What would make a run shorter: the explanation of a trace.

    explanation = explain_trace(trace)
    for finding in explanation.findings:
        print(finding.share, finding.kind, finding.ranks)

Calls in which a kernel warms up are left out (`first_calls.py`). Of captures with more
events than are replayed in reasonable time, calls are taken by their lengths, from the shortest to
the longest: typical and slow ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from kprof.analysis.explain.engine import LEAST_GAIN, Explanation, explain
from kprof.analysis.explain.finding import ExplainedFinding, FindingKind, finding_of, sources_of
from kprof.analysis.explain.limits import Limit
from kprof.analysis.memo import memo
from kprof.analysis.replay.load import ReplayedCalls, calls_to_replay
from kprof.analysis.summary import Summary
from kprof.trace import Trace


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
    return explained(calls_seen, found)


def explained(replayed: ReplayedCalls, explanation: Explanation) -> TraceExplanation:
    """An explanation of these calls, with their numbers."""
    below = explanation.below
    return TraceExplanation(
        tuple(finding_of(explanation, part) for part in explanation.parts),
        explanation.limits,
        replayed.ordinals,
        replayed.warm_up,
        replayed.num_calls,
        float(explanation.lengths_ns.sum()),
        None if below is None else finding_of(explanation, below),
        explanation.least_share,
    )
