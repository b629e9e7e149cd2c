"""Costs that several rules need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kprof.analysis.balance import efficiency, rank_efficiency
from kprof.analysis.memo import memo
from kprof.analysis.rules.finding import Severity, severity_of
from kprof.analysis.rules.outliers import medians_of_others
from kprof.analysis.summary import Summary

if TYPE_CHECKING:
    import pandas as pd


@memo
def run_time_ns(summary: Summary) -> float:
    """The time with a launch running; without one clock, the longest such time of a rank."""
    table = efficiency(summary) if summary.trace.is_on_one_clock else rank_efficiency(summary)
    return float(table["window_ns"].max()) if len(table) else 0.0


def severity_of_cost(summary: Summary, cost_ns: float) -> Severity:
    """How much of the time with a launch running a cost takes."""
    return severity_of(cost_ns / max(run_time_ns(summary), 1))


@memo
def credit_regions(summary: Summary) -> dict[int, str]:
    """Wait regions by which senders wait for room: they name a peer, end no flow, and their blocks send to that
    peer."""
    table = summary.frame(
        """
        WITH waits AS (
            SELECT c.region_id, c.rank, c.block, c.peer FROM cells c JOIN regions r ON r.id = c.region_id
            WHERE r.category IN ('wait', 'sync') AND c.peer >= 0
                AND c.region_id NOT IN (SELECT wait FROM flow_rules)),
        sends AS (
            SELECT DISTINCT c.rank, c.block, c.peer FROM cells c JOIN regions r ON r.id = c.region_id
            WHERE r.category = 'send' AND c.peer >= 0)
        SELECT w.region_id, r.name FROM waits w JOIN regions r ON r.id = w.region_id
        LEFT JOIN sends s USING (rank, block, peer)
        GROUP BY w.region_id, r.name HAVING avg(CAST(s.peer IS NOT NULL AS DOUBLE)) >= 0.9 ORDER BY w.region_id"""
    )
    return dict(zip(table["region_id"].tolist(), table["name"].tolist(), strict=True))


@memo
def longest_waits_for(summary: Summary) -> pd.Series:
    """How long each rank makes the others wait, in ns over the run, indexed by the rank waited for.

    A launch ends when its slowest block does, so a rank's wait for a peer is that of its block that waits
    longest for it (per launch, summed), and the ranks' waits are averaged. Without skew in the waits that is
    the delay the peer causes.
    """
    import pandas as pd

    excluded = ", ".join(str(region) for region in credit_regions(summary)) or "NULL"
    table = summary.frame(
        f"""
        WITH warps AS (SELECT rank, launch, block, count(*) AS warps FROM tracks GROUP BY ALL),
        by_block AS (
            SELECT c.rank, c.launch, c.peer, c.block, sum(c.total_ns) / any_value(warps) AS wait_ns
            FROM cells c JOIN regions r ON r.id = c.region_id JOIN warps USING (rank, launch, block)
            WHERE r.category IN ('wait', 'sync') AND c.peer >= 0 AND c.peer <> c.rank
                AND (c.region_id IN ({excluded})) IS NOT TRUE
            GROUP BY c.rank, c.launch, c.peer, c.block),
        by_rank AS (
            SELECT rank, launch, peer, max(wait_ns) AS wait_ns FROM by_block GROUP BY ALL)
        SELECT peer, sum(wait_ns) AS wait_ns FROM by_rank GROUP BY peer"""
    ).set_index("peer")["wait_ns"]
    ranks = {info.rank for info in summary.trace.ranks}
    peers = range(summary.trace.manifest.world_size)
    waiting = pd.Series({p: max(1, len(ranks) - (p in ranks)) for p in peers}, dtype=float)
    totals = table.reindex(list(peers), fill_value=0).astype(float)
    return totals / waiting


def excess_wait_for(summary: Summary, peer: int) -> float:
    """The part of `longest_waits_for` of one peer that is beyond the median of the other peers."""
    waits = longest_waits_for(summary)
    if peer not in waits.index or len(waits) < 2:
        return 0.0
    usual = medians_of_others(waits.to_numpy())[list(waits.index).index(peer)]
    return max(0.0, float(waits[peer] - usual))
