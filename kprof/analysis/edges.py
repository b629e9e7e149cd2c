"""Ramp and tail of launches, stalls that other tracks hide, and the bandwidth of transfers."""

from __future__ import annotations

from kprof.analysis.metric import metric
from kprof.analysis.summary import CLOSED_SPANS, WAIT, WORK, Summary, Table


@metric()
def ramp_and_tail(summary: Summary) -> Table:
    """Per launch and rank, the time before a track's first useful event and after its last one.

    Columns: kernel, ordinal, rank, tracks, duration_ns (first to last event of the rank),
    mean_ramp_ns, max_ramp_ns, mean_tail_ns, max_tail_ns, last_block (whose useful work ends last).
    For tracks without useful work the whole duration is ramp. Uses the rank's own clock, so it
    needs no alignment.
    """
    return summary.frame(
        """
        SELECT s.kernel, s.ordinal, s.rank, s.tracks, s.last_ns - s.first_ns AS duration_ns,
            avg(coalesce(t.first_useful_ns, s.last_ns) - s.first_ns) AS mean_ramp_ns,
            max(coalesce(t.first_useful_ns, s.last_ns) - s.first_ns) AS max_ramp_ns,
            avg(s.last_ns - coalesce(t.last_useful_ns, s.last_ns)) AS mean_tail_ns,
            max(s.last_ns - coalesce(t.last_useful_ns, s.last_ns)) AS max_tail_ns,
            arg_max(t.block, (t.last_useful_ns, -t.block))
                FILTER (t.last_useful_ns IS NOT NULL) AS last_block
        FROM tracks t JOIN spans_of_launches s USING (rank, launch)
        GROUP BY s.kernel, s.ordinal, s.rank, s.tracks, s.first_ns, s.last_ns ORDER BY s.ordinal,
            s.kernel, s.rank"""
    )


@metric()
def stalls(summary: Summary) -> Table:
    """The stall time of every SM (or CU), and how much of it other tracks' useful work hides.

    Columns: rank, hw_id, tracks, stall_ns (union of the waits on it), hidden_ns (covered by
    compute, send or recv of another track), exposed_ns. `hw_id` is the processor according to the
    device; on the CPU target it is the block. Only innermost spans count, because a useful span
    around a wait of its own track would hide it. Sorts all events, and raises SelectionError for
    more than five million.
    """
    summary.require_few_events("hidden and exposed stalls sort")
    return summary.frame(
        f"""
        WITH spans AS (
            SELECT rank, launch, hw_id, block, warp, start_ns, end_ns, {WAIT} AS waits,
                {WORK} AS works, lead(start_ns) OVER track AS next_start
            FROM events WHERE {CLOSED_SPANS}
            WINDOW track AS (PARTITION BY rank, launch, block, warp ORDER BY start_ns,
                end_ns DESC, event_id)),
        swept AS (
            SELECT *, max(end_ns) FILTER (waits OR works) OVER before AS busy_until,
                max(end_ns) FILTER (waits) OVER before AS waited_until,
                max(end_ns) FILTER (works) OVER before AS worked_until
            FROM spans WHERE (waits OR works)
                AND NOT (next_start IS NOT NULL AND next_start < end_ns)
            WINDOW before AS (PARTITION BY rank, launch, hw_id ORDER BY start_ns
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)),
        measured AS (
            SELECT rank, hw_id, count(DISTINCT (block, warp)) AS tracks,
                sum({_beyond("busy_until")}) AS busy_ns,
                coalesce(sum({_beyond("waited_until")}) FILTER (waits), 0) AS stall_ns,
                coalesce(sum({_beyond("worked_until")}) FILTER (works), 0) AS worked_ns
            FROM swept GROUP BY rank, hw_id)
        SELECT rank, hw_id, tracks, CAST(stall_ns AS BIGINT) AS stall_ns,
            CAST(stall_ns - (busy_ns - worked_ns) AS BIGINT) AS hidden_ns,
            CAST(busy_ns - worked_ns AS BIGINT) AS exposed_ns
        FROM measured ORDER BY rank, hw_id"""
    )


def _beyond(until: str) -> str:
    return f"greatest(0, end_ns - greatest(start_ns, {until}))"


@metric()
def bandwidth(summary: Summary) -> Table:
    """The bandwidth of regions that count bytes, per link.

    Columns: region, rank, peer (-1 if the region names none), spans, bytes, total_ns (sum over
    tracks), per_track_gb_s (bytes / total), busy_ns (first start to last end per launch, summed),
    link_gb_s (bytes / busy). GB are 10^9 bytes.
    """
    return summary.frame(
        """
        WITH per_launch AS (
            SELECT region, rank, peer, launch, sum(events) AS spans, sum(bytes) AS bytes,
                sum(total_ns) AS total_ns, max(last_ns) - min(first_ns) AS busy_ns
            FROM named_cells WHERE bytes > 0 GROUP BY ALL)
        SELECT region, rank, peer, total(spans) AS spans, total(bytes) AS bytes,
            total(total_ns) AS total_ns,
            coalesce(sum(bytes) / nullif(sum(total_ns), 0), 0.0) AS per_track_gb_s,
            total(busy_ns) AS busy_ns,
            coalesce(sum(bytes) / nullif(sum(busy_ns), 0), 0.0) AS link_gb_s
        FROM per_launch GROUP BY region, rank, peer ORDER BY region, rank, peer"""
    )
