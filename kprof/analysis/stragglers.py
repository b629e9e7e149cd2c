"""Who waits, and who is waited for: one row per rank."""

from __future__ import annotations

from kprof.analysis.balance import VS_OTHERS_SQL
from kprof.analysis.durations import block_time_ns
from kprof.analysis.hung import ended_calls
from kprof.analysis.metric import metric
from kprof.analysis.summary import WAIT, Summary, Table
from kprof.analysis.waiting import blame


@metric()
def stragglers(summary: Summary) -> Table:
    """One row per recorded rank: who waits, and who is waited for. Needs no alignment.

    Columns: rank, wait_ns, wait_share (of its blocks' time), caused_ns (the others' wait for it),
    arrived_last (share of launches and waiting ranks in which it was waited for longest), work_ns,
    work_vs_median (of the other rank where there are two). `what_if` has the gain if only that rank
    were like the others. Calls that hung are left out.
    """
    summary = ended_calls(summary)
    table = summary.frame(
        f"""
        WITH waits AS (
            SELECT rank, launch, peer, sum(total_ns) AS wait_ns FROM named_cells
            WHERE {WAIT} AND peer >= 0 AND peer <> rank GROUP BY ALL),
        longest AS (SELECT rank, launch, arg_max(peer, (wait_ns, -peer)) AS peer FROM waits
            GROUP BY rank, launch),
        last AS (
            SELECT peer AS rank, count(*) / (SELECT count(*) FROM longest) AS arrived_last
            FROM longest GROUP BY peer),
        own AS (
            SELECT rank, total(wait_ns) AS wait_ns, total(work_ns) AS work_ns
            FROM tracks GROUP BY rank)
        SELECT rank, wait_ns, coalesce(arrived_last, 0.0) AS arrived_last, work_ns,
            {VS_OTHERS_SQL} AS work_vs_median
        FROM own LEFT JOIN last USING (rank) ORDER BY rank"""
    )
    whole = table["rank"].map(lambda rank: max(1, block_time_ns(summary, int(rank))))
    table.insert(2, "wait_share", table["wait_ns"] / whole)
    foreign = blame(summary)
    foreign = foreign[foreign["rank"] != foreign["peer"]]
    caused = foreign.groupby("peer")["wait_ns"].sum()
    table.insert(3, "caused_ns", table["rank"].map(caused).fillna(0).astype("int64"))
    return table
