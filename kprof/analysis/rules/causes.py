"""Which finding explains which: a rank is waited for because of what it does, a tail is there because of a
block's work."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kprof.analysis.rules.finding import Finding, Severity

_RANK_CAUSES: Final = ("uneven_work", "launch_skew", "uneven_speed")
# What a rank is waited for may have any of these causes; blocks have more work only where the rank they serve has.
_CAUSES_AT_THE_PEER: Final = {
    "late_sender": _RANK_CAUSES,
    "barrier_wait": _RANK_CAUSES,
    "uneven_work": ("uneven_work",),
}
# What slows many blocks down at once makes some of them last, and some ranks late.
_EVERYWHERE: Final = (
    "serialised_waits",
    "back_pressure",
    "exposed_transfer",
    "lock_contention",
    "barrier_wait",
)
# A cause that costs a fifth of a symptom is taken for its cause: it delays some blocks more than others.
_ENOUGH: Final = 0.2
_SEVERITIES: Final = list(Severity)


def with_causes(found: list[Finding]) -> list[Finding]:
    """Link symptoms to what causes them; a cause takes over their severity and cost."""
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
    return [_at_the_root(finding, linked) for finding in linked.values()]


def _at_the_root(finding: Finding, linked: dict[str, Finding]) -> Finding:
    """A symptom of a symptom belongs to the first cause."""
    root, seen = finding, {finding.id}
    while root.explained_by is not None and root.explained_by not in seen:
        seen.add(root.explained_by)
        root = linked[root.explained_by]
    return finding if root is finding else replace(finding, explained_by=root.id)


def _cause_of(symptom: Finding, found: list[Finding]) -> Finding | None:
    """The costliest finding about the rank, or the block, that `symptom` is about."""
    if symptom.kind == "tail":
        candidates = [f for f in found if _has_its_block(f, symptom)]
    elif symptom.kind in _CAUSES_AT_THE_PEER and symptom.evidence.get("peer") is not None:
        peer, kinds = (symptom.evidence["peer"],), _CAUSES_AT_THE_PEER[symptom.kind]
        candidates = [f for f in found if f.kind in kinds and f.ranks == peer and not f.blocks]
    else:
        candidates = []
    if symptom.kind in ("late_sender", "tail"):
        enough = _ENOUGH * symptom.cost_ns
        candidates += [f for f in found if f.kind in _EVERYWHERE and f.cost_ns >= enough]
    if symptom.kind == "exposed_transfer":
        # In a fixed order blocks wait for data on its way although other data is there.
        enough = _ENOUGH * symptom.cost_ns
        candidates += [f for f in found if f.kind == "serialised_waits" and f.cost_ns >= enough]
    return max(candidates, key=lambda finding: finding.cost_ns, default=None)


def _has_its_block(finding: Finding, tail: Finding) -> bool:
    """Uneven work or speed of the block that is last, or of its whole rank."""
    if finding.kind not in ("uneven_work", "uneven_speed", "late_sender", "launch_skew"):
        return False
    if not finding.blocks:
        return finding.kind in ("late_sender", "launch_skew") or finding.ranks == tail.ranks
    blocks = finding.evidence["blocks"].get(str(tail.ranks[0]), [])
    return tail.blocks[0] in blocks
