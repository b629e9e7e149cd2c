"""What would make a run shorter: the explanation of a trace.

    explanation = explain_trace(trace)
    for finding in explanation.findings:
        print(finding.share, finding.sentence)

Calls in which a kernel warms up are left out (`warmup.py`). Of captures with more
events than are replayed in reasonable time, calls are taken by their lengths, from the shortest to
the longest: typical and slow ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kprof.analysis.findings.candidates.candidate import basis_of
from kprof.analysis.findings.candidates.grown import grown_since
from kprof.analysis.findings.differences import Difference, differences_of
from kprof.analysis.findings.finding import Finding, Kind
from kprof.analysis.findings.greedy import Search, candidates_of
from kprof.analysis.findings.limits import Limit, limits_of
from kprof.analysis.findings.thresholds import LEAST_GAIN, LEAST_GAIN_ONCE
from kprof.analysis.metric import memo
from kprof.analysis.replay.load import ReplayedCalls, calls_to_replay
from kprof.analysis.summary import Summary
from kprof.trace import Trace


@dataclass(frozen=True)
class Explanation:
    """What pays, in order, and what the design costs on top (`limits.py`).

    `ordinals` are the calls that were looked at, `warm_up` those left out as such, of `num_calls`;
    `total_ns` is what those looked at took together. `below` is a rank that has many more items
    than the others, where that costs less than a finding must; all that is no finding costs less
    than `least_share`. `differences` between places are what is left (`differences.py`).
    `refused` candidates contradicted the recording: they gained more than what carries them.
    """

    findings: tuple[Finding, ...] = ()
    limits: tuple[Limit, ...] = ()
    ordinals: tuple[int, ...] = ()
    warm_up: tuple[int, ...] = ()
    num_calls: int = 0
    total_ns: float = 0.0
    below: Finding | None = None
    least_share: float = LEAST_GAIN
    differences: tuple[Difference, ...] = ()
    refused: int = 0


def explain_trace(trace: Trace) -> Explanation:
    """Explain a trace."""
    return explain_summary(Summary.of(trace))


@memo
def explain_summary(summary: Summary, left_out: frozenset[Kind] = frozenset()) -> Explanation:
    """Explain a trace that is summarised already; one rank by itself needs no common clock.

    Findings of the kinds `left_out` are not looked for: others get what those would explain.

    Raises SelectionError where one call has more events than are replayed.
    """
    replayed = calls_to_replay(summary)
    if replayed is None:
        return Explanation()
    basis = basis_of(replayed.graph)
    search = Search(basis, candidates_of(basis, left_out))
    found = _explanation(search, replayed)
    return replace(
        found,
        limits=limits_of(basis, search.left, LEAST_GAIN),
        differences=differences_of(basis, search.replay, search.left),
    )


def explain_growth(base: Summary, candidate: Summary) -> Explanation:
    """What in the candidate takes longer than in the base, in which calls, and what that costs.

    The calls of the candidate are replayed with one thing as it was in the base. Without limits,
    and empty where one of them has no calls. Raises like `explain_summary`.
    """
    before, after = calls_to_replay(base), calls_to_replay(candidate)
    if before is None or after is None:
        return Explanation()
    basis = basis_of(after.graph)
    bound_ns = max(before.graph.bound_ns, after.graph.bound_ns)
    search = Search(basis, grown_since(basis, basis_of(before.graph), bound_ns))
    return _explanation(search, after)


def _explanation(search: Search, replayed: ReplayedCalls) -> Explanation:
    """What a search finds, with the numbers of the calls."""
    found = search.run()
    return Explanation(
        findings=tuple(found),
        ordinals=replayed.ordinals,
        warm_up=replayed.warm_up,
        num_calls=replayed.num_calls,
        total_ns=search.total_ns,
        below=search.below(),
        refused=search.refused,
        least_share=LEAST_GAIN_ONCE if search.has_chance else LEAST_GAIN,
    )
