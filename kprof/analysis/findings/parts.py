"""Where the time of all blocks goes: parts that add up to one, and waits under the findings that
they wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kprof.analysis.durations import block_time_ns
from kprof.analysis.findings.facts import Caused
from kprof.analysis.findings.finding import Finding
from kprof.analysis.findings.thresholds import LEAST_WAIT_SHARE
from kprof.analysis.metric import memo
from kprof.analysis.summary import WAIT, Column, Summary, Table
from kprof.analysis.waiting import blame, late_sender
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


def waits_of(summary: Summary, findings: Sequence[Finding]) -> list[tuple[Caused, ...]]:
    """By finding: waits of other ranks for the ranks that it names, by region.

    Each wait under its first finding. Shares are of the blocks' time (`block_time_ns`), in which a
    wait within a wait counts once.
    """
    left = blame(summary)
    left = left[left["rank"] != left["peer"]]
    total = max(1, block_time_ns(summary)) / waited_once(summary)
    found: list[tuple[Caused, ...]] = []
    for finding in findings:
        is_its = is_for(left, finding)
        found.append(_by_region(left[is_its], total))
        left = left[~is_its]
    return found


@memo
def waited_once(summary: Summary) -> float:
    """What tracks waited over the sum of all waits: less than 1 where waits lie within waits."""
    once, listed = summary.row(
        f"SELECT (SELECT sum(wait_ns) FROM tracks), sum(total_ns) FROM named_cells WHERE {WAIT}"
    )
    return min(1.0, float(once) / float(listed)) if once and listed else 1.0


def is_for(waits: Table, finding: Finding) -> Column:
    """Which rows, waits of `rank` for `peer`, are waits for what a finding names."""
    is_its = waits["peer"].isin(finding.ranks)
    for source, destination in finding.links:
        is_from = waits["peer"] == source if source >= 0 else waits["peer"] >= 0
        is_its |= is_from & (waits["rank"] == destination) if destination >= 0 else is_from
    return is_its


def _by_region(waits: Table, total_ns: float) -> tuple[Caused, ...]:
    found = []
    for region, rows in waits.groupby("region"):
        wait_ns = int(rows["wait_ns"].sum())
        ranks, peers = (tuple(sorted(set(rows[name].tolist()))) for name in ("rank", "peer"))
        found.append(Caused(str(region), ranks, peers, wait_ns, wait_ns / total_ns))
    kept = [wait for wait in found if wait.share >= LEAST_WAIT_SHARE]
    return tuple(sorted(kept, key=lambda wait: -wait.wait_ns))
