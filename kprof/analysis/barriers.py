"""Waits in barriers, count exchanges and locks. How their spans end tells which it is."""

from __future__ import annotations

from typing import Final

from kprof.analysis.hung import ended_calls
from kprof.analysis.metric import metric
from kprof.analysis.summary import CLOSED_SPANS, Summary, Table


@metric()
def barrier_waits(summary: Summary) -> Table:
    """N x N waits in regions of category sync: time from a track's enter to the last one's, per
    region and last rank (of those that enter at the same time, the lowest).

    N x N wait = max(0, min(latest enter, my leave) - my enter), over the n-th span of the region on
    every track of a launch. The scope is "world" if all ranks leave after the last one entered, at
    about the same time; "rank" if that holds for the blocks of each rank; otherwise the region is a
    "lock", or something else that its holders leave one by one. Columns: region, scope, last_rank,
    last_block (the one that was last most often), instances, enters, nxn_wait_ns, wait_ns. Calls
    that hung are left out. Without alignment only "rank" and "lock" are distinguished.
    """
    summary = ended_calls(summary)
    return summary.frame(
        f"""
        WITH {_meetings_sql(summary, _any_sync(summary))}
        SELECT region, kind AS scope, last_one.rank AS last_rank,
            mode(last_one.block ORDER BY last_one.block) AS last_block,
            count(DISTINCT (kernel, ordinal, occurrence, of_rank)) AS instances,
            count(*) AS enters,
            total(greatest(0, least(last_enter, end_ns) - start_ns)) AS nxn_wait_ns,
            total(end_ns - start_ns) AS wait_ns
        FROM met JOIN chosen USING (region) WHERE (kind = 'world') = (scope = 'world')
        GROUP BY region, kind, last_rank ORDER BY nxn_wait_ns DESC, region, last_rank"""
    )


def last_to_enter_sql(summary: Summary, where: str) -> str:
    """SQL of a table: the event_id of spans in barriers of all ranks, and last_rank, which entered
    last. `where` says which events to look at."""
    return f"""WITH {_meetings_sql(summary, where)}
        SELECT event_id, last_one.rank AS last_rank FROM met JOIN chosen USING (region)
        WHERE kind = 'world' AND scope = 'world'"""


def _meetings_sql(summary: Summary, where: str) -> str:
    """SQL of the tables `met`, a row per span and scope, and `chosen`, the kind of each region."""
    bound_ns, is_one = float(worst_bound_ns(summary)), summary.trace.is_on_one_clock
    return f"""entered AS (
            SELECT event_id, rank, region, kernel, ordinal, block, start_ns, end_ns,
                row_number() OVER (
                    PARTITION BY rank, launch, block, warp, region_id ORDER BY start_ns, end_ns)
                AS occurrence
            FROM events WHERE {CLOSED_SPANS} AND category = 'sync' AND {where}),
        seen AS (
            SELECT *, 'world' AS scope, -1 AS of_rank FROM entered
            UNION ALL SELECT *, 'rank', rank FROM entered),
        met AS (
            SELECT *, max(start_ns) OVER meeting AS last_enter,
                min(end_ns) OVER meeting AS first_leave, max(end_ns) OVER meeting AS last_leave,
                max(end_ns - start_ns) OVER meeting AS longest, count(*) OVER meeting AS entered,
                arg_max(struct_pack(rank := rank, block := block), (start_ns, -rank, -block))
                    OVER meeting AS last_one
            FROM seen
            WINDOW meeting AS (PARTITION BY scope, of_rank, kernel, ordinal, region, occurrence)),
        shares AS (
            SELECT region, scope, {_SHARE_OF_BARRIERS} AS share
            FROM (SELECT *, CASE scope WHEN 'world' THEN {bound_ns} ELSE 0.0 END AS bound_ns
                FROM met) GROUP BY region, scope),
        chosen AS (
            SELECT region, CASE
                WHEN max(share) FILTER (scope = 'world' AND {is_one}) >= 0.95 THEN 'world'
                WHEN max(share) FILTER (scope = 'rank') >= 0.95 THEN 'rank' ELSE 'lock' END AS kind
            FROM shares GROUP BY region)"""


def _any_sync(summary: Summary) -> str:
    """Whether the summary has any sync spans; if not, no event is read."""
    table = summary.frame("SELECT 1 FROM named_cells WHERE category = 'sync' LIMIT 1")
    return "true" if len(table) else "false"


# In how many instances all leave after the last one entered, within the clock bound. All leave a
# barrier at about the same time, but the holders of a lock leave as far apart as they wait.
_SHARE_OF_BARRIERS: Final = """
    CASE WHEN sum(last_leave - first_leave) > 0.7 * sum(longest) THEN 0.0
    ELSE avg(CAST(first_leave + bound_ns >= last_enter AND entered > 1 AS DOUBLE)) END"""


def worst_bound_ns(summary: Summary) -> float:
    """The largest clock error bound between two ranks."""
    entries = summary.trace.alignment.ranks if summary.trace.alignment else ()
    return sum(sorted((entry.bound_ns for entry in entries), reverse=True)[:2])
