"""The waits that remain, under the findings that they wait for."""

from __future__ import annotations

from collections.abc import Sequence

from kprof.analysis.durations import block_time_ns
from kprof.analysis.findings.facts import Caused
from kprof.analysis.findings.finding import Finding
from kprof.analysis.findings.thresholds import LEAST_WAIT_SHARE
from kprof.analysis.memo import memo
from kprof.analysis.summary import WAIT, Column, Summary, Table
from kprof.analysis.waiting import blame


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
