"""Where the time of all blocks goes: parts that add up to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kprof.analysis.findings.model import Finding
from kprof.analysis.findings.waits import is_for, waits_of
from kprof.analysis.summary import Summary
from kprof.analysis.waiting import late_sender
from kprof.analysis.warmup import steady_efficiency, steady_part
from kprof.analysis.wording import members

if TYPE_CHECKING:
    import pandas as pd


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
    efficiency = steady_efficiency(summary)
    total = float((efficiency["locations"] * efficiency["window_ns"]).sum())
    if total <= 0:
        return ()
    steady = steady_part(summary)[0]
    own = steady.frame(
        """SELECT coalesce(sum(work_ns), 0) AS work, coalesce(sum(wait_ns), 0) AS wait,
            coalesce(sum(greatest(0, last_ns - first_ns - work_ns - wait_ns)), 0) AS none
        FROM tracks"""
    ).astype("float64")
    work, wait, none = (float(own[name].iloc[0]) for name in ("work", "wait", "none"))
    parts = [
        Part("work", "work: compute, send, receive", work),
        Part("idle", "imbalance: no work while others run", max(0.0, total - work - wait - none)),
        *_waits(steady, found, wait),
        Part("none", "unexplained: in no region", none),
    ]
    # Launches that overlap on one rank count twice, so the sum may be more than the total.
    total = sum(part.share for part in parts)
    shares = [Part(part.kind, part.name, part.share / total) for part in parts]
    return tuple(part for part in shares if part.share > 0)


def _waits(summary: Summary, found: Sequence[Finding], wait_ns: float) -> list[Part]:
    """Waiting by its cause: findings, then late senders, data on its way, barriers; in ns."""
    causes = [finding.cause for finding in found]
    parts = []
    for number, caused in enumerate(waits_of(summary, causes), start=1):
        if caused:
            peers = members("rank", [peer for wait in caused for peer in wait.peers], 3)
            name = f"waiting for {peers} (finding {number})"
            parts.append(Part("wait", name, float(sum(wait.wait_ns for wait in caused))))
    late = late_sender(summary).rename(columns={"src": "peer", "dst": "rank"})
    for cause in causes:
        late = late[~is_for(late, cause)]
    parts += [
        Part("wait", "waiting for late senders", float(late["late_sender_ns"].sum())),
        Part("transfer", "waiting for data on its way", float(late["exposed_transfer_ns"].sum())),
    ]
    known = sum(part.share for part in parts)
    # Waits within waits: each says what it lasts, and together they last longer.
    scale = min(1.0, wait_ns / known) if known else 1.0
    left = max(0.0, wait_ns - known)
    sync = min(left, _sync_ns(summary))
    return [
        *(Part(part.kind, part.name, scale * part.share) for part in parts),
        Part("sync", "at barriers and locks", sync),
        Part("wait", "other waits", left - sync),
    ]


def _sync_ns(summary: Summary) -> float:
    table: pd.DataFrame = summary.frame(
        """SELECT coalesce(sum(total_ns), 0) AS total FROM cells c
        JOIN regions r ON r.id = c.region_id WHERE r.category = 'sync'"""
    )
    return float(table["total"].iloc[0])
