"""Collectives of NCCL and RCCL: who came last, how long the others waited, what that rank did
before, which channels lag."""

from __future__ import annotations

from typing import Final

import pandas as pd

from kprof.analysis.calls import launches_of_calls, of_nccl
from kprof.analysis.metric import memo, metric
from kprof.analysis.summary import Summary, Table

# The region of those who wait for the last one.
WAIT: Final = "nccl/wait"
_COLLECTIVE: Final = ["kernel", "of_kernel"]


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


@memo
def arrivals(summary: Summary) -> Table:
    """The collectives in which ranks waited for the last one, in any order.

    Columns: kernel, of_kernel (its number among the kernel's launches), ordinal (of the call),
    place (which one of its kernel in that call, from 1), places (how many of these the call has),
    rank (the last one), late_ns (how long the others waited for it, in the median), before (the
    kernel that the rank ran for longer than the others since its collective before, "" where none
    was) and before_ns (for how much longer).
    """
    waits = summary.frame(
        f"""SELECT s.kernel, s.ordinal AS of_kernel, c.rank, c.peer, max(c.total_ns) AS ns
        FROM named_cells c JOIN spans_of_launches s USING (rank, launch)
        WHERE c.region = '{WAIT}' AND c.peer >= 0 GROUP BY ALL ORDER BY ALL"""
    )
    found = waits.groupby(_COLLECTIVE).agg(
        rank=("peer", lambda peers: peers.mode()[0]), late_ns=("ns", "median")
    )
    launches = launches_of_calls(summary)
    is_collective = of_nccl(summary, launches)
    calls = launches[is_collective].groupby(_COLLECTIVE)["ordinal"].min().reset_index()
    groups = calls.groupby(["kernel", "ordinal"])["of_kernel"]
    calls = calls.assign(place=groups.cumcount() + 1, places=groups.transform("size"))
    found = found.reset_index().merge(calls, on=_COLLECTIVE)
    before = _before(launches[is_collective], launches[~is_collective], found)
    return found.merge(before, on=_COLLECTIVE, how="left").fillna({"before": "", "before_ns": 0.0})


def _before(collectives: Table, others: Table, last: Table) -> Table:
    """Columns _COLLECTIVE, before, before_ns: of the kernels between two collectives of a rank, the
    one that the `last` rank ran for the longest beyond the median of the others."""
    next_one = collectives[["rank", "first_ns", *_COLLECTIVE]].sort_values("first_ns")
    others = others.assign(ns=others["last_ns"] - others["first_ns"], before=others["kernel"])
    found = pd.merge_asof(
        others[["rank", "first_ns", "ns", "before"]].sort_values("first_ns"),
        next_one,
        "first_ns",
        by="rank",
        direction="forward",
    )
    keys = [*_COLLECTIVE, "before"]
    found = found.groupby([*keys, "rank"])["ns"].sum().reset_index()
    found = found.merge(last[[*_COLLECTIVE, "rank"]], on=_COLLECTIVE, suffixes=("", "_last"))
    is_last = found["rank"] == found["rank_last"]
    usual = found[~is_last].groupby(keys)["ns"].median()
    mine = found[is_last].groupby(keys)["ns"].sum()
    more = mine.sub(usual, fill_value=0.0).rename("before_ns").reset_index()
    more = more[more["before_ns"] > 0].sort_values("before_ns")
    return more.drop_duplicates(_COLLECTIVE, keep="last")
