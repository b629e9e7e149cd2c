"""Who waits, for how long, and for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from kprof.analysis.durations import BLOCK_TIME_SQL
from kprof.analysis.summary import summarise

if TYPE_CHECKING:
    import pandas as pd

    from kprof.trace import Trace

WaitKey = Literal["rank", "block", "region", "peer"]

_KEYS: Final[dict[str, str]] = {
    "rank": "rank",
    "block": "rank, block",
    "region": "region",
    "peer": "peer",
}


def waits(trace: Trace, by: WaitKey = "rank") -> pd.DataFrame:
    """Time in regions of category wait and sync, by waiting rank, by its block, by region, or by the rank
    waited for.

    Columns: the key (rank | rank, block | region | peer), count, wait_ns, mean_ns, max_ns, share (of the block
    time of the rank; of all block time for region and peer). Peer -1 collects waits whose region names no rank.
    Every wait is measured on the waiting rank's own clock, so this holds without alignment.
    """
    keys = _KEYS[by]
    summarise(trace)
    of_rank = by in ("rank", "block")
    block_time = f"({BLOCK_TIME_SQL}{' WHERE tracks.rank = w.rank' if of_rank else ''})"
    return trace.frame(
        f"""
        WITH w AS (
            SELECT {keys}, CAST(sum(events) AS BIGINT) AS count, CAST(sum(total_ns) AS BIGINT) AS wait_ns,
                max(max_ns) AS max_ns
            FROM ({_WAIT_CELLS_SQL}) GROUP BY ALL)
        SELECT {keys}, count, wait_ns, wait_ns / count AS mean_ns, max_ns,
            coalesce(wait_ns / nullif({block_time}, 0), 0.0) AS share
        FROM w ORDER BY {"wait_ns DESC, " if by in ("region", "peer") else ""}{keys}"""
    )


_WAIT_CELLS_SQL: Final = """
    SELECT c.*, r.name AS region FROM cells c JOIN regions r ON r.id = c.region_id
    WHERE r.category IN ('wait', 'sync')"""


def blame_matrix(trace: Trace, region: str | None = None) -> pd.DataFrame:
    """Wait time of rank r (row) by the rank it waited for (column), in ns; of all wait regions or of one.

    Rows are the recorded ranks, columns 0 .. world size - 1. Only waits that name their peer are in it: its sum
    is the attributed wait, `waits(by="peer")` tells what is left. Direct blame: when rank 5 is late because it
    waited for rank 3 itself, the charge stays with 5; see `delay_costs` for the propagated one. Needs no
    alignment.
    """
    long = blame(trace)
    if region is not None:
        long = long[long["region"] == region]
    ranks = [info.rank for info in trace.ranks]
    matrix = long.pivot_table(
        index="rank", columns="peer", values="wait_ns", aggfunc="sum", fill_value=0
    )
    matrix = matrix.reindex(
        index=ranks, columns=list(range(trace.manifest.world_size)), fill_value=0
    )
    return matrix.astype("int64").rename_axis(index="rank", columns="peer")


def blame(trace: Trace) -> pd.DataFrame:
    """The blame matrix in long form and per region: region, rank, peer, count, wait_ns, max_ns."""
    summarise(trace)
    return trace.frame(
        f"""
        SELECT region, rank, peer, CAST(sum(events) AS BIGINT) AS count,
            CAST(sum(total_ns) AS BIGINT) AS wait_ns, max(max_ns) AS max_ns
        FROM ({_WAIT_CELLS_SQL}) WHERE peer >= 0 GROUP BY ALL ORDER BY region, rank, peer"""
    )


def late_sender(trace: Trace) -> pd.DataFrame:
    """Waits released by a send, split into "sent too late" and "on its way", per wait region, source and
    destination.

    For a wait [w0, w1] whose send started at p: late sender = max(0, min(p, w1) - w0), exposed transfer = w1 -
    max(w0, min(p, w1)); they add up to the wait (Scalasca's late sender, doi 10.1145/2934661). Columns: region,
    src, dst, flows, wait_ns, late_sender_ns, exposed_transfer_ns, violations (the wait ended before its send
    began: impossible, so the clocks or the slots are wrong), violations_beyond_bound (by more than the clock
    error), bound_ns, blocks (tracks of dst that waited for src), waiting_blocks (tracks of dst that waited for
    anyone). Violations stay in the sums, they are counted and not clamped away. Raises ClockError on
    unaligned clocks.
    """
    trace.require_alignment("late sender")
    _make_flow_table(trace)
    return trace.frame("SELECT * FROM late_senders ORDER BY late_sender_ns DESC, region, src, dst")


def _make_flow_table(trace: Trace) -> None:
    known = trace.frame("SELECT 1 FROM duckdb_tables() WHERE table_name = 'late_senders'")
    if len(known):
        return
    released = "least(send_start_ns, wait_end_ns)"
    bound = _bound_sql(trace)
    trace.frame(
        f"""
        CREATE TEMP TABLE late_senders AS
        SELECT wait_region AS region, src, dst, count(*) AS flows,
            CAST(sum(wait_end_ns - wait_start_ns) AS BIGINT) AS wait_ns,
            CAST(sum(greatest(0, {released} - wait_start_ns)) AS BIGINT) AS late_sender_ns,
            CAST(sum(wait_end_ns - greatest(wait_start_ns, {released})) AS BIGINT) AS exposed_transfer_ns,
            count(*) FILTER (wait_end_ns < send_start_ns) AS violations,
            count(*) FILTER (wait_end_ns < send_start_ns - {bound}) AS violations_beyond_bound,
            any_value({bound}) AS bound_ns, count(DISTINCT (wait_block, wait_warp)) AS blocks,
            any_value(waiting_blocks) AS waiting_blocks
        FROM flows JOIN (
            SELECT wait_region, dst, count(DISTINCT (wait_block, wait_warp)) AS waiting_blocks FROM flows GROUP BY ALL)
            USING (wait_region, dst)
        GROUP BY wait_region, src, dst"""
    )


def _bound_sql(trace: Trace) -> str:
    """The clock error bound between `src` and `dst`, as an expression."""
    entries = trace.alignment.ranks if trace.alignment else ()
    whens = " ".join(f"WHEN {entry.rank} THEN {float(entry.bound_ns)}" for entry in entries)
    if not whens:
        return "0.0"

    def of(column: str) -> str:
        return f"(CASE {column} {whens} ELSE 0.0 END)"

    return f"(CASE WHEN src = dst THEN 0.0 ELSE {of('src')} + {of('dst')} END)"


def unmatched_flows(trace: Trace) -> pd.DataFrame:
    """Sends that released no recorded wait and waits without a recorded send, per flow rule.

    Columns: send_region, wait_region, sends, waits, flows, unmatched_sends, unmatched_waits. Lost records,
    missing ranks, open spans and slots that do not fit their field are the usual reasons.
    """
    summarise(trace)
    return trace.frame(
        """
        WITH counts AS (SELECT region_id, CAST(sum(events) AS BIGINT) AS events FROM cells GROUP BY region_id),
        pairs AS (SELECT send_region, wait_region, count(*) AS flows FROM flows GROUP BY ALL)
        SELECT s.name AS send_region, w.name AS wait_region, coalesce(cs.events, 0) AS sends,
            coalesce(cw.events, 0) AS waits, coalesce(p.flows, 0) AS flows,
            sends - coalesce(p.flows, 0) AS unmatched_sends, waits - coalesce(p.flows, 0) AS unmatched_waits
        FROM flow_rules f JOIN regions s ON s.id = f.send JOIN regions w ON w.id = f.wait
        LEFT JOIN counts cs ON cs.region_id = f.send LEFT JOIN counts cw ON cw.region_id = f.wait
        LEFT JOIN pairs p ON p.send_region = s.name AND p.wait_region = w.name
        ORDER BY send_region, wait_region"""
    )
