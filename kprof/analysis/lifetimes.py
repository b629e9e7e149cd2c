"""Launches of which every warp's lifetime is known, as of programs that nobody instrumented."""

from __future__ import annotations

from kprof.analysis.metric import metric
from kprof.analysis.summary import CLOSED_SPANS, Summary, Table
from kprof.regions import LIFETIME


@metric()
def warp_lifetimes(summary: Summary) -> Table:
    """How evenly each launch used the processors, from the lifetimes of its warps.

    Columns: kernel, rank, launch, blocks, first_wave (blocks that began before any had ended),
    waves (blocks / first_wave, rounded up), duration_ns (first begin to last end), gap_ns (since
    the rank's launches before it had ended; NULL for the first, below 0 for an overlap),
    late_start_ns (last begin in the first wave after the first one), tail_ns (from the end of the
    median processor to the end), processors, busiest_hw_id, imbalance (the time that blocks spent
    on it over the mean of all), slowest_block, slowest_hw_id, slowest_ns, median_ns (of blocks).
    Uses the rank's own clock. Empty where no lifetimes were recorded.
    """
    return summary.frame(
        f"""
        WITH of_blocks AS (
            SELECT rank, launch, block, CAST(min(hw_id) AS BIGINT) AS hw_id,
                min(start_ns) AS begin_ns,
                max(end_ns) AS end_ns, max(end_ns) - min(start_ns) AS life_ns
            FROM events WHERE {_are_lifetimes(summary)} AND {CLOSED_SPANS}
            GROUP BY rank, launch, block),
        marked AS (
            SELECT *, begin_ns < min(end_ns) OVER w AS is_first, min(begin_ns) OVER w AS first_ns
            FROM of_blocks WINDOW w AS (PARTITION BY rank, launch)),
        of_launches AS (
            SELECT rank, launch, count(*) AS blocks, min(begin_ns) AS first_ns,
                max(end_ns) AS last_ns, count(*) FILTER (is_first) AS first_wave,
                max(begin_ns - first_ns) FILTER (is_first) AS late_start_ns,
                arg_max(block, (life_ns, -block)) AS slowest_block,
                arg_max(hw_id, (life_ns, -block)) AS slowest_hw_id, max(life_ns) AS slowest_ns,
                median(life_ns) AS median_ns
            FROM marked GROUP BY rank, launch),
        of_processors AS (
            SELECT rank, launch, hw_id, total(life_ns) AS busy_ns, max(end_ns) AS end_ns
            FROM of_blocks GROUP BY rank, launch, hw_id),
        of_all AS (
            SELECT rank, launch, count(*) AS processors, quantile_disc(end_ns, 0.5) AS middle_ns,
                arg_max(hw_id, (busy_ns, -hw_id)) AS busiest_hw_id,
                max(busy_ns) / greatest(1, avg(busy_ns)) AS imbalance
            FROM of_processors GROUP BY rank, launch),
        before AS (
            SELECT rank, launch, max(last_ns) OVER (PARTITION BY rank ORDER BY first_ns, launch
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS ended_ns FROM of_launches)
        SELECT s.kernel, rank, launch, l.blocks, first_wave,
            CAST(ceil(l.blocks / first_wave) AS BIGINT) AS waves,
            l.last_ns - l.first_ns AS duration_ns, l.first_ns - ended_ns AS gap_ns, late_start_ns,
            l.last_ns - middle_ns AS tail_ns, processors, busiest_hw_id, imbalance,
            slowest_block, slowest_hw_id, slowest_ns, CAST(median_ns AS BIGINT) AS median_ns
        FROM of_launches l JOIN of_all USING (rank, launch) JOIN before USING (rank, launch)
            JOIN spans_of_launches s USING (rank, launch)
        ORDER BY rank, l.first_ns, launch"""
    )


def _are_lifetimes(summary: Summary) -> str:
    """A condition for SQL. Where no region is a lifetime, no event is read."""
    has_any = any(name.startswith(LIFETIME) for name in summary.trace.regions.names)
    return f"starts_with(region, '{LIFETIME}')" if has_any else "FALSE"
