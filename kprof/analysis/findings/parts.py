"""Where the time of all blocks goes: parts that add up to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kprof.analysis.durations import block_time_ns
from kprof.analysis.findings.finding import Finding
from kprof.analysis.findings.waits import is_for, waited_once
from kprof.analysis.summary import Summary
from kprof.analysis.waiting import late_sender
from kprof.analysis.warmup import steady_part
from kprof.analysis.wording import members

_TRANSFER: Final = "exposed_transfer_ns"


@dataclass(frozen=True)
class Part:
    """A share, 0 to 1, of the time of all tracks while a kernel runs on some rank.

    `kind` is work, wait (a finding or a late sender is behind it), transfer (data was on its way),
    sync (a barrier or a lock), idle (before a block's first event, after its last one, or no part
    in the launch at all: what uneven work leaves), or none (in no region).
    """

    kind: str
    name: str
    share: float


def breakdown(summary: Summary, found: Sequence[Finding]) -> tuple[Part, ...]:
    """What all tracks did, without a warm-up; the shares add up to 1.

    Empty where the ranks have no clock in common, or there is nothing to divide.
    """
    if not summary.trace.is_on_one_clock:
        return ()
    steady = steady_part(summary)[0]
    total = float(block_time_ns(steady))
    if total <= 0:
        return ()
    own = steady.row(
        """SELECT coalesce(sum(work_ns), 0), coalesce(sum(wait_ns), 0),
            coalesce(sum(greatest(0, last_ns - first_ns - work_ns - wait_ns)), 0)
        FROM tracks"""
    )
    work, wait, none = map(float, own)
    parts = [
        Part("work", "work: compute, send, receive", work),
        Part("idle", "imbalance: no work while others run", max(0.0, total - work - wait - none)),
        *_waits(steady, found, wait),
        Part("none", "in no region", none),
    ]
    # Work and waits of a track are unions, so only rounding is left.
    total = sum(part.share for part in parts)
    shares = [Part(part.kind, part.name, part.share / total) for part in parts]
    return tuple(part for part in shares if part.share > 0)


def _waits(summary: Summary, found: Sequence[Finding], wait_ns: float) -> list[Part]:
    """Waiting by its cause: findings, then late senders, data on its way, barriers; in ns."""
    total = block_time_ns(summary)
    parts = [
        Part("wait", _name(finding, number), total * sum(wait.share for wait in finding.waits))
        for number, finding in enumerate(found, start=1)
        if finding.waits
    ]
    late = late_sender(summary).rename(columns={"src": "peer", "dst": "rank"})
    for finding in found:
        late = late[~is_for(late, finding)]
    once = waited_once(summary)
    others = [
        Part("wait", "waiting for late senders", once * float(late["late_sender_ns"].sum())),
        Part("transfer", "waiting for data on its way", once * float(late[_TRANSFER].sum())),
    ]
    left = max(0.0, wait_ns - sum(part.share for part in parts))
    known = sum(part.share for part in others)
    # A wait that several sends released is in each of these sums.
    scale = min(1.0, left / known) if known else 1.0
    left = max(0.0, left - known)
    (sync_ns,) = summary.row("SELECT sum(total_ns) FROM named_cells WHERE category = 'sync'")
    sync = min(left, float(sync_ns or 0))
    return [
        *parts,
        *(Part(part.kind, part.name, scale * part.share) for part in others),
        Part("sync", "at barriers and locks", sync),
        Part("wait", "other waits", left - sync),
    ]


def _name(finding: Finding, number: int) -> str:
    waiting, peers = finding.who_waits
    whom = "each other" if waiting == peers else members("rank", peers, 3)
    return f"waiting for {whom} (finding {number})"
