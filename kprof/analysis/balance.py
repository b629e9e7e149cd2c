"""How evenly work is distributed, and the efficiency figures."""

from __future__ import annotations

from functools import partial
from typing import Final, Literal

from kprof.analysis.hung import ended_calls
from kprof.analysis.metric import METRICS, memo, metric
from kprof.analysis.summary import WORK, Summary, Table


@metric(name="imbalance_by_rank")
def imbalance(summary: Summary, by: Literal["rank", "block"] = "rank") -> Table:
    """Events, work, wait and bytes per rank or per block.

    Columns: rank (, block), tracks, events, work_events (those of compute, send and recv regions),
    work_ns, wait_ns, bytes, ns_per_event (work_ns over work_events), work_vs_median (of the ranks,
    or of the blocks of its rank; of the other one where there are two), load_balance (mean / max of
    the work of the rank's tracks; for blocks, this block's work over the largest of its rank).
    Events are closed spans. Work is the union of a track's compute, send and recv spans minus its
    waits, summed over tracks. Calls that hung are left out. Needs no alignment.
    """
    return ended_calls(summary).frame(_RANKS_SQL if by == "rank" else _BLOCKS_SQL)


METRICS["imbalance_by_block"] = partial(imbalance, by="block")


_BLOCK_WORK_SQL: Final = """
    SELECT rank, block, count(*) AS tracks, total(work_ns) AS work_ns,
        total(wait_ns) AS wait_ns, max(work_ns) AS max_track_ns
    FROM (SELECT rank, block, warp, sum(work_ns) AS work_ns, sum(wait_ns) AS wait_ns
        FROM tracks GROUP BY ALL)
    GROUP BY rank, block"""


def _vs_others(partition: str) -> str:
    """SQL for the work of one over the median of all; of two, over the other one."""
    over = f"OVER ({partition})"
    usual = (
        f"CASE count(*) {over} WHEN 2 THEN sum(work_ns) {over} - work_ns "
        f"ELSE median(work_ns) {over} END"
    )
    return f"CAST(coalesce(work_ns / nullif({usual}, 0), 0.0) AS DOUBLE)"


VS_OTHERS_SQL: Final = _vs_others("")

_COUNTS_SQL: Final = f"""
    SELECT rank, block, total(events) AS events, total(bytes) AS bytes,
        CAST(sum(events) FILTER ({WORK}) AS BIGINT) AS work_events
    FROM cells c LEFT JOIN regions r ON r.id = c.region_id GROUP BY rank, block"""

_BLOCKS_SQL: Final = f"""
    SELECT rank, block, tracks, events, coalesce(work_events, 0) AS work_events, work_ns, wait_ns,
        bytes,
        coalesce(work_ns / nullif(work_events, 0), 0.0) AS ns_per_event,
        {_vs_others("PARTITION BY rank")} AS work_vs_median,
        coalesce(work_ns / nullif(max(work_ns) OVER (PARTITION BY rank), 0), 1.0) AS load_balance
    FROM ({_BLOCK_WORK_SQL}) JOIN ({_COUNTS_SQL}) USING (rank, block) ORDER BY rank, block"""

_RANKS_SQL: Final = f"""
    WITH ranks_work AS (
        SELECT rank, total(tracks) AS tracks, total(events) AS events, total(work_ns) AS work_ns,
            total(wait_ns) AS wait_ns, total(bytes) AS bytes, sum(work_events) AS work_events,
            coalesce(sum(work_ns) / nullif(sum(tracks) * max(max_track_ns), 0), 1.0)
                AS load_balance
        FROM ({_BLOCK_WORK_SQL}) JOIN ({_COUNTS_SQL}) USING (rank, block) GROUP BY rank)
    SELECT rank, tracks, events, CAST(coalesce(work_events, 0) AS BIGINT) AS work_events, work_ns,
        wait_ns, bytes,
        coalesce(work_ns / nullif(work_events, 0), 0.0) AS ns_per_event,
        {VS_OTHERS_SQL} AS work_vs_median, load_balance
    FROM ranks_work ORDER BY rank"""


@memo
def efficiency(summary: Summary) -> Table:
    """The efficiency tree of the whole run: parallel efficiency = load balance x communication
    efficiency.

    One row: locations (tracks), window_ns (T: time with a launch running on some rank), work_ns
    (sum of U), wait_ns, max_work_ns, parallel_efficiency = sum U / (N T), load_balance = mean U /
    max U, communication_efficiency = max U / T (the POP efficiencies). T excludes time between
    launches, which is the host's. Launches that overlap on a rank (streams) add up in U. Raises
    ClockError on unaligned clocks; `rank_efficiency` needs none.
    """
    summary.trace.require_alignment("the efficiency of the run")
    return summary.frame(_efficiency_sql("0", ""))


@metric()
def rank_efficiency(summary: Summary) -> Table:
    """`efficiency` per rank, over the rank's own launches and clock: rank, then the columns of
    `efficiency`."""
    return summary.frame(_efficiency_sql("rank", "WHERE rank >= 0"))


def run_time_ns(summary: Summary) -> float:
    """The time with a launch running. On unaligned clocks, the longest such time of a rank."""
    is_one = summary.trace.is_on_one_clock
    table = efficiency(summary) if is_one else rank_efficiency(summary)
    return float(table["window_ns"].max()) if len(table) else 0.0


@metric(one_clock="the efficiency of a launch")
def launch_efficiency(summary: Summary) -> Table:
    """`efficiency` per launch over all ranks: kernel, ordinal, first_ns, then its columns. Raises
    ClockError."""
    return summary.frame(
        f"""
        WITH named AS (
            SELECT s.kernel, s.ordinal, t.* FROM tracks t JOIN spans_of_launches s
                USING (rank, launch)),
        sums AS (
            SELECT kernel, ordinal, min(first_ns) AS first_ns, count(*) AS locations,
                max(last_ns) - min(first_ns) AS window_ns, total(work_ns) AS work_ns,
                total(wait_ns) AS wait_ns, max(work_ns) AS max_work_ns
            FROM named GROUP BY kernel, ordinal)
        SELECT *, {_RATIOS} FROM sums ORDER BY first_ns, ordinal, kernel"""
    )


_RATIOS: Final = """
    coalesce(work_ns / nullif(locations * window_ns, 0), 1.0) AS parallel_efficiency,
    coalesce(work_ns / nullif(locations * max_work_ns, 0), 1.0) AS load_balance,
    coalesce(max_work_ns / nullif(window_ns, 0), 1.0) AS communication_efficiency"""


def _efficiency_sql(scope: str, where: str) -> str:
    """SQL for the efficiencies. Launches may overlap (streams), so T is the length of their union,
    by the sweep of `summary`."""
    key = f"{scope} AS scope"
    return f"""
        WITH windows AS (
            SELECT {key}, kernel, ordinal, min(first_ns) AS first_ns, max(last_ns) AS last_ns
            FROM spans_of_launches {where} GROUP BY ALL),
        swept AS (
            SELECT *, max(last_ns) OVER (PARTITION BY scope ORDER BY first_ns
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS covered_until FROM windows),
        lengths AS (
            SELECT scope, total(greatest(0, last_ns - greatest(first_ns, covered_until)))
                AS window_ns FROM swept GROUP BY scope),
        locations AS (
            SELECT {key}, rank, block, warp, sum(work_ns) AS work_ns, sum(wait_ns) AS wait_ns
                FROM tracks GROUP BY ALL),
        sums AS (
            SELECT scope, count(*) AS locations, total(work_ns) AS work_ns,
                total(wait_ns) AS wait_ns, CAST(max(work_ns) AS BIGINT) AS max_work_ns
            FROM locations GROUP BY scope)
        SELECT {"scope AS rank, " if scope == "rank" else ""}locations, window_ns, work_ns, wait_ns,
            max_work_ns,
            {_RATIOS}
        FROM sums JOIN lengths USING (scope) ORDER BY scope"""
