"""What takes longer than in another recording of the same work: where, in which calls, and what it
costs.

The calls of the candidate are replayed with one thing as it was in the base. As in one recording,
what gains most comes first, and what merely waits for it has nothing left to gain.
"""

from __future__ import annotations

from kprof.analysis.explain.engine import explain_by
from kprof.analysis.explain.explanation import TraceExplanation, explained
from kprof.analysis.explain.hypotheses.growth import grown_since
from kprof.analysis.explain.hypotheses.model import basis_of
from kprof.analysis.replay.load import calls_to_replay
from kprof.analysis.summary import Summary


def explain_growth(base: Summary, candidate: Summary) -> TraceExplanation:
    """What in the candidate takes longer than in the base.

    Nothing where one of them has no calls. Raises ClockError where ranks are not on one clock, and
    SelectionError where a call has more events than are replayed.
    """
    before, after = calls_to_replay(base), calls_to_replay(candidate)
    if before is None or after is None:
        return TraceExplanation()
    basis = basis_of(after.graph)
    hypotheses = grown_since(basis, basis_of(before.graph), max(before.bound_ns, after.bound_ns))
    return explained(after, explain_by(basis, hypotheses))
