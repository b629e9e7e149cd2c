"""Explanations: what would a run gain if one thing were as it usually is?

`replay` runs the graph with what these modules would change.

excess       where it takes longer than its likes
hypotheses   what could be as it usually is
engine       which of them pay, one after the other
limits       what locks, barriers, waves and transfers cost in what is left
finding      typed findings, one vocabulary of kinds
explanation  all of that for a trace
growth       the same against another recording: what takes longer than there
measured     how much longer, per block, as tables show it
"""

from kprof.analysis.explain.explanation import TraceExplanation, explain_summary, explain_trace
from kprof.analysis.explain.finding import ExplainedFinding, FindingKind, When
from kprof.analysis.explain.growth import explain_growth
from kprof.analysis.explain.limits import Limit, LimitKind

__all__ = [
    "ExplainedFinding",
    "FindingKind",
    "Limit",
    "LimitKind",
    "TraceExplanation",
    "When",
    "explain_growth",
    "explain_summary",
    "explain_trace",
]
