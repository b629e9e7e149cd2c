"""Who waits, for how long, and for whom: by rank, region and link, and by role within a block."""

from __future__ import annotations

from functools import partial
from typing import Literal

from kprof.analysis.balance import VS_OTHERS_SQL
from kprof.analysis.durations import block_time_ns
from kprof.analysis.flow_sums import sum_flows
from kprof.analysis.hung import ended_calls
from kprof.analysis.metric import METRICS, metric
from kprof.analysis.summary import WAIT, Summary, Table

WaitKey = Literal["rank", "block", "region", "peer"]


@metric(name="waits_by_rank")
def waits(summary: Summary, by: WaitKey = "rank") -> Table:
    """The time in regions of category wait and sync, by waiting rank, its block, region, or the
    rank waited for.

    Columns: the key (rank | rank, block | region | peer), count, wait_ns, mean_ns, max_ns, share
    (of the blocks' time, see `block_time_ns`: of the rank's blocks, or of all for region and peer);
    by block also share_of_block (of that block's own part of the rank's time, by its tracks).
    Peer -1 collects waits whose region names no rank. Waits are measured on the waiting rank's own
    clock, so this needs no alignment. Calls that hung are left out (`hung_waits`).
    """
    summary, keys = ended_calls(summary), "rank, block" if by == "block" else by
    table = summary.frame(
        f"""
        SELECT {keys}, total(events) AS count, total(total_ns) AS wait_ns,
            sum(total_ns) / sum(events) AS mean_ns, max(max_ns) AS max_ns
        FROM named_cells WHERE {WAIT} GROUP BY ALL
        ORDER BY {"wait_ns DESC, " if by in ("region", "peer") else ""}{keys}"""
    )
    if by in ("rank", "block"):
        whole = table["rank"].map(lambda rank: max(1, block_time_ns(summary, int(rank))))
        table = table.assign(share=table["wait_ns"] / whole)
        if by == "rank":
            return table
        # Which part of its rank's tracks every block has.
        tracks = summary.frame(
            "SELECT rank, block, count(DISTINCT warp) AS tracks FROM tracks GROUP BY rank, block"
        )
        tracks["part"] = tracks["tracks"] / tracks.groupby("rank")["tracks"].transform("sum")
        part = table[["rank", "block"]].merge(tracks, how="left")["part"]
        return table.assign(share_of_block=table["share"] / part)
    return table.assign(share=table["wait_ns"] / max(1, block_time_ns(summary)))


METRICS["waits_by_region"] = partial(waits, by="region")
METRICS["waits_by_peer"] = partial(waits, by="peer")


def blame_matrix(summary: Summary, region: str | None = None) -> Table:
    """The wait time in ns of each rank (row) for each rank (column), in all wait regions or in one.

    Rows are the recorded ranks, columns 0 .. world size - 1. Only waits that name their peer are
    included: the sum is the attributed wait, and `waits(by="peer")` has the rest. Blame is direct:
    if rank 5 is late because it waited for rank 3, the wait for 5 is charged to 5; `delay_costs`
    propagates it. Needs no alignment.
    """
    long = blame(summary)
    if region is not None:
        long = long[long["region"] == region]
    ranks = [info.rank for info in summary.trace.ranks]
    matrix = long.pivot_table(
        index="rank", columns="peer", values="wait_ns", aggfunc="sum", fill_value=0
    )
    matrix = matrix.reindex(
        index=ranks, columns=list(range(summary.trace.manifest.world_size)), fill_value=0
    )
    return matrix.astype("int64").rename_axis(index="rank", columns="peer")


@metric()
def blame(summary: Summary) -> Table:
    """The blame matrix in long form and per region: region, rank, peer, count, wait_ns, max_ns.
    Calls that hung are left out."""
    return ended_calls(summary).frame(
        f"""
        SELECT region, rank, peer, total(events) AS count, total(total_ns) AS wait_ns,
            max(max_ns) AS max_ns
        FROM named_cells WHERE {WAIT} AND peer >= 0 GROUP BY ALL ORDER BY region, rank, peer"""
    )


@metric(one_clock="late sender")
def late_sender(summary: Summary) -> Table:
    """Waits that a send released, split into late sender and transfer, per wait region, source and
    destination.

    For a wait [w0, w1] whose send started at p: late sender = max(0, min(p, w1) - w0), exposed
    transfer = w1 - max(w0, min(p, w1)); they add up to the wait (Scalasca's late sender, doi
    10.1145/2934661). Columns: region, src, dst, flows, wait_ns, late_sender_ns,
    exposed_transfer_ns, violations (the wait ended before its send began: impossible, so the clocks
    or the slots are wrong), violations_beyond_bound (by more than the clock error), bound_ns,
    blocks (of dst that waited for src), waiting_blocks (of dst that waited for anyone). Violations
    are counted and stay in the sums. Calls that hung are left out. Raises ClockError on unaligned
    clocks.
    """
    summary = ended_calls(summary)
    sum_flows(summary)
    return summary.frame(
        """
        WITH by_link AS (
            SELECT region, rank AS dst, peer AS src, count(DISTINCT block) AS blocks
            FROM named_cells GROUP BY ALL),
        by_rank AS (
            SELECT region, rank AS dst, count(DISTINCT block) AS waiting_blocks
            FROM named_cells GROUP BY ALL)
        SELECT wait_region AS region, src, dst, total(flows) AS flows, total(wait_ns) AS wait_ns,
            total(late_sender_ns) AS late_sender_ns,
            total(exposed_transfer_ns) AS exposed_transfer_ns, total(violations) AS violations,
            total(violations_beyond_bound) AS violations_beyond_bound, max(bound_ns) AS bound_ns,
            any_value(blocks) AS blocks, any_value(waiting_blocks) AS waiting_blocks
        FROM flow_sums f JOIN by_link l USING (src, dst) JOIN by_rank r USING (dst)
        WHERE l.region = f.wait_region AND r.region = f.wait_region
        GROUP BY wait_region, src, dst ORDER BY late_sender_ns DESC, wait_region, src, dst"""
    )


@metric()
def unmatched_flows(summary: Summary) -> Table:
    """Sends that released no recorded wait and waits without a recorded send, per flow rule.

    Columns: send_region, wait_region, sends, waits, flows, unmatched_sends, unmatched_waits. The
    usual reasons are lost records, missing ranks, open spans, and slots that do not fit their
    field. Within blocks unmatched_sends is 0: no warp waits for the last places of a queue, nor for
    the first of several warps that hand on an item.
    """
    sum_flows(summary)
    return summary.frame(
        """
        WITH counts AS (
            SELECT region_id, total(events) AS events FROM cells GROUP BY region_id),
        pairs AS (
            SELECT send_region, wait_region, total(flows) AS flows, total(sends) AS met_sends
            FROM flow_sums GROUP BY ALL)
        SELECT s.name AS send_region, w.name AS wait_region, coalesce(cs.events, 0) AS sends,
            coalesce(cw.events, 0) AS waits, coalesce(p.flows, 0) AS flows,
            if(f.in_block, 0, sends - coalesce(p.met_sends, 0)) AS unmatched_sends,
            waits - coalesce(p.flows, 0) AS unmatched_waits
        FROM flow_rules f JOIN regions s ON s.id = f.send JOIN regions w ON w.id = f.wait
        LEFT JOIN counts cs ON cs.region_id = f.send LEFT JOIN counts cw ON cw.region_id = f.wait
        LEFT JOIN pairs p ON p.send_region = s.name AND p.wait_region = w.name
        ORDER BY send_region, wait_region"""
    )


@metric()
def role_waits(summary: Summary) -> Table:
    """What warps of each role wait for in their block, the largest share first.

    A role is what stands before the "/" in the names of regions ("consumer/wait-weights"). Columns:
    role, region, waits_for (the regions that end the wait), count, wait_ns, share (of all recorded
    time of the role). Only waits that FLOW_IN_BLOCK joins with others.
    Calls that hung are left out.
    """
    return ended_calls(summary).frame(
        """WITH spent AS (
            SELECT region_id, region, total(events) AS count, total(total_ns) AS wait_ns,
                CASE WHEN contains(region, '/') THEN split_part(region, '/', 1) ELSE '' END AS role
            FROM named_cells GROUP BY region_id, region),
        shares AS (
            SELECT *, wait_ns / greatest(1, sum(wait_ns) OVER (PARTITION BY role)) AS share
            FROM spent),
        ends AS (
            SELECT f.wait AS region_id, string_agg(r.name, ', ' ORDER BY r.name) AS waits_for
            FROM flow_rules f JOIN regions r ON r.id = f.send
            WHERE f.in_block GROUP BY f.wait)
        SELECT role, region, waits_for, count, wait_ns, share
        FROM shares JOIN ends USING (region_id) ORDER BY share DESC, region"""
    )


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
