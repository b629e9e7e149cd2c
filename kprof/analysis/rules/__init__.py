"""Findings: sentences with numbers, what, where, what it cost and what would help.

Every rule is a function from a Trace to a list of Finding that says nothing unless the numbers stand out;
`findings` runs all of them, links symptoms to causes and orders the result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kprof.analysis.rules.causes import with_causes
from kprof.analysis.rules.finding import Finding, Severity
from kprof.analysis.rules.links import back_pressure, exposed_transfers, serialised_waits
from kprof.analysis.rules.measure import run_time_ns
from kprof.analysis.rules.meeting import barriers_and_locks
from kprof.analysis.rules.places import with_places
from kprof.analysis.rules.quality import (
    guessed_metadata,
    lossy_capture,
    oversubscribed,
    sampled_flows,
    uncalibrated_clocks,
    unmatched,
)
from kprof.analysis.rules.shape import idle_blocks, idle_processors, tails
from kprof.analysis.rules.speed import uneven_speed_of_blocks, uneven_speed_of_ranks
from kprof.analysis.rules.uneven import uneven_blocks, uneven_ranks
from kprof.analysis.rules.waited import late_senders, skewed_launches
from kprof.analysis.rules.warmup import steady_part
from kprof.analysis.skew import launch_starts

if TYPE_CHECKING:
    from kprof.analysis.summary import Summary

__all__ = ["Finding", "Severity", "findings"]

_QUALITY_RULES: Final = (
    lossy_capture,
    uncalibrated_clocks,
    guessed_metadata,
    unmatched,
    oversubscribed,
    sampled_flows,
)
_RULES: Final = (
    uneven_ranks,
    uneven_blocks,
    uneven_speed_of_ranks,
    uneven_speed_of_blocks,
    skewed_launches,
    serialised_waits,
    late_senders,
    exposed_transfers,
    back_pressure,
    barriers_and_locks,
    tails,
    idle_blocks,
    idle_processors,
)
_SEVERITIES: Final = list(Severity)


def findings(summary: Summary) -> list[Finding]:
    """All findings, the most severe and costly first; a cause stands before what it explains.

    Works on every trace: rules that need one clock say nothing on unaligned ones, and one finding says so.
    """
    if launch_starts(summary).empty:
        return lossy_capture(summary)
    steady, notes = steady_part(summary)
    found = [finding for rule in _QUALITY_RULES for finding in rule(summary)]
    found += notes + [finding for rule in _RULES for finding in rule(steady)]
    run_ns = max(run_time_ns(steady), 1.0)
    placed = with_places(steady, ordered(_doubted(with_causes(found))))
    return [replace(finding, share=finding.cost_ns / run_ns) for finding in placed]


# What counts of events say, whoever had the processor meanwhile.
_BY_COUNT: Final = ("uneven_work",)


def _doubted(found: list[Finding]) -> list[Finding]:
    """Where ranks share cores no finding about time is more than minor."""
    if not any(finding.kind == "oversubscribed" for finding in found):
        return found
    return [
        replace(finding, severity=Severity.MINOR)
        if finding.severity in (Severity.CRITICAL, Severity.MAJOR)
        and finding.cost_ns > 0
        and finding.kind not in _BY_COUNT
        else finding
        for finding in found
    ]


def ordered(found: list[Finding]) -> list[Finding]:
    """By severity and cost of the root cause; what it explains follows it.

    A capture that lost too much comes before everything, shared cores before what they make doubtful, and ranks on
    clocks of their own before all that is not critical: it says why nothing is said about who waited for whom.
    """
    by_id = {finding.id: finding for finding in found}
    is_doubtful = any(finding.kind == "oversubscribed" for finding in found)

    def key(finding: Finding) -> tuple[float, float, str, bool, float]:
        root = by_id.get(finding.explained_by or "", finding)
        rank = float(_SEVERITIES.index(root.severity))
        if root.kind == "lossy_capture" and root.severity is Severity.CRITICAL:
            rank = -1.0
        if root.id == "uncalibrated-clocks":
            rank = _SEVERITIES.index(Severity.MAJOR) - 0.5
        if root.kind == "oversubscribed":
            rank = _SEVERITIES.index(Severity.MINOR) + 0.5
        elif is_doubtful and root.cost_ns > 0 and root.kind not in _BY_COUNT:
            rank = max(rank, _SEVERITIES.index(Severity.MINOR) + 0.6)
        return rank, -root.cost_ns, root.id, finding is not root, -finding.cost_ns

    return sorted(found, key=key)
