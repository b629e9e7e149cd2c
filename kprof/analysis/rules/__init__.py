"""Findings: sentences with numbers, what, where, what it cost and what would help.

Every rule is a function from a Trace to a list of Finding that says nothing unless the numbers stand out;
`findings` runs all of them, links symptoms to causes and orders the result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kprof.analysis.rules.finding import Finding, Severity
from kprof.analysis.rules.quality import lossy_capture, uncalibrated_clocks, unmatched
from kprof.analysis.rules.uneven import uneven_blocks, uneven_ranks
from kprof.analysis.rules.waited import late_senders, skewed_launches
from kprof.analysis.rules.warmup import steady_part

if TYPE_CHECKING:
    from kprof.trace import Trace

__all__ = ["Finding", "Severity", "findings"]

_QUALITY_RULES: Final = (lossy_capture, uncalibrated_clocks, unmatched)
_RULES: Final = (uneven_ranks, uneven_blocks, skewed_launches, late_senders)
_SEVERITIES: Final = list(Severity)


def findings(trace: Trace) -> list[Finding]:
    """All findings, the most severe and costly first; a cause stands before the waits that it explains.

    Works on every trace: rules that need one clock say nothing on unaligned ones, and one finding says so.
    """
    if trace.num_events() == 0:
        return lossy_capture(trace)
    steady, notes = steady_part(trace)
    found = [finding for rule in _QUALITY_RULES for finding in rule(trace)]
    found += notes + [finding for rule in _RULES for finding in rule(steady)]
    return sorted(_with_causes(found), key=_order)


def _order(finding: Finding) -> tuple[int, bool, float]:
    return _SEVERITIES.index(finding.severity), finding.explained_by is not None, -finding.cost_ns


# What makes a rank late.
_CAUSES: Final = ("uneven_work", "launch_skew")


def _with_causes(found: list[Finding]) -> list[Finding]:
    """Link symptoms to what causes them; a cause takes over their severity and cost.

    Waits for a rank are explained by what that rank does, and the work of the blocks that serve a rank by how
    much it sends.
    """
    linked = {finding.id: finding for finding in found}
    for symptom in found:
        cause = _cause_of(symptom, found)
        if cause is None:
            continue
        linked[symptom.id] = replace(symptom, explained_by=cause.id)
        known = linked[cause.id]
        if symptom.cost_ns > known.cost_ns:
            severity = min(known.severity, symptom.severity, key=_SEVERITIES.index)
            linked[cause.id] = replace(known, cost_ns=symptom.cost_ns, severity=severity)
    return list(linked.values())


def _cause_of(symptom: Finding, found: list[Finding]) -> Finding | None:
    """The costliest finding about the rank that `symptom` is about."""
    serves = (
        symptom.evidence.get("peer") if symptom.kind in ("late_sender", "uneven_work") else None
    )
    if serves is None:
        return None
    candidates = [
        finding
        for finding in found
        if finding.kind in _CAUSES and finding.ranks == (serves,) and not finding.blocks
    ]
    return max(candidates, key=lambda finding: finding.cost_ns, default=None)
