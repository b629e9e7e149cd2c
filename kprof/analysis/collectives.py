"""Collectives of NCCL and RCCL: who came last, how long the others waited, which channels lag."""

from __future__ import annotations

from kprof.analysis.metric import metric
from kprof.analysis.summary import Summary, Table


@metric()
def collectives(summary: Summary) -> Table:
    """Of the calls of a collective, those in which the same rank came last.

    Columns: kernel, last_rank (-1: not known), calls, wait_ns (of all channels of the others),
    longest_wait_ns, transfer_ns (the median channel's, in the median call), slowest_block (the
    channel that moved its data for longest, most often) and lag_ns (how much longer than the median
    channel, in the median call).
    """
    return summary.frame(
        """
        WITH found AS (
            SELECT l.kernel, l.ordinal, c.rank, c.block, c.peer, c.region, c.total_ns
            FROM named_cells c JOIN spans_of_launches l USING (rank, launch)
            WHERE c.region IN ('nccl/wait', 'nccl/transfer', 'nccl/compute')),
        waited AS (
            SELECT kernel, ordinal, mode(peer) FILTER (peer >= 0) AS last_rank,
                total(total_ns) AS wait_ns, max(total_ns) AS longest_ns
            FROM found WHERE region = 'nccl/wait' GROUP BY kernel, ordinal),
        moved AS (
            SELECT kernel, ordinal, median(total_ns) AS median_ns, max(total_ns) AS most_ns,
                arg_max(block, (total_ns, -block)) AS slowest
            FROM found WHERE region <> 'nccl/wait' GROUP BY kernel, ordinal)
        SELECT m.kernel, coalesce(w.last_rank, -1) AS last_rank, count(*) AS calls,
            coalesce(total(w.wait_ns), 0) AS wait_ns,
            coalesce(max(w.longest_ns), 0) AS longest_wait_ns,
            CAST(median(m.median_ns) AS BIGINT) AS transfer_ns,
            mode(m.slowest ORDER BY m.slowest) AS slowest_block,
            CAST(median(m.most_ns - m.median_ns) AS BIGINT) AS lag_ns
        FROM moved m LEFT JOIN waited w USING (kernel, ordinal)
        GROUP BY m.kernel, coalesce(w.last_rank, -1) ORDER BY wait_ns DESC, kernel, last_rank"""
    )
