"""Durations of regions: counts, sums and percentiles."""

from __future__ import annotations

from typing import Final

from kprof.analysis.balance import efficiency, rank_efficiency
from kprof.analysis.hung import ended_calls
from kprof.analysis.metric import memo, metric
from kprof.analysis.summary import Summary, Table
from kprof.capture.directory import EVENT_OPEN
from kprof.capture.rank_summary import SUB_BUCKETS

# Up to this many durations can be read again within a second.
_MOST_EXACT: Final = 2_000_000
# An estimated percentile is the geometric middle of its bucket, between the true minimum and
# maximum.
PERCENTILE_ERROR: Final = 2 ** (0.5 / SUB_BUCKETS) - 1


@metric(name="regions")
def stats(summary: Summary) -> Table:
    """Durations per region, the longest total first.

    Columns: region, category, count, total_ns, mean_ns, median_ns, p95_ns, p99_ns, max_ns, share
    (of the blocks' time, see `block_time_ns`), percentile_error.
    Percentiles are exact (nearest rank) for up to two million events. For more they are estimated
    from a mergeable log2 histogram with 16 buckets per octave, with an error of at most
    percentile_error = 2.2 %. Open spans have no duration and are not counted; calls that hung are
    left out (`hung_waits`).
    """
    summary = ended_calls(summary)
    is_exact = summary.trace.num_events() <= _MOST_EXACT
    if not is_exact:
        summary.require_buckets()
    percentiles = _EXACT_SQL if is_exact else _ESTIMATES_SQL
    return summary.frame(
        f"""
        WITH totals AS (
            SELECT region_id, total(events) AS count, total(total_ns) AS total_ns,
                min(min_ns) AS min_ns, max(max_ns) AS max_ns
            FROM cells GROUP BY region_id),
        {percentiles}
        SELECT coalesce(r.name, 'unknown region') AS region,
            coalesce(r.category, 'other') AS category,
            count, t.total_ns, t.total_ns / count AS mean_ns,
            {_clip("median_ns")}, {_clip("p95_ns")}, {_clip("p99_ns")}, max_ns,
            t.total_ns / {max(1, block_time_ns(summary))} AS share,
            {0.0 if is_exact else PERCENTILE_ERROR} AS percentile_error
        FROM totals t JOIN percentiles USING (region_id) LEFT JOIN regions r ON r.id = t.region_id
        ORDER BY t.total_ns DESC, region"""
    )


@memo
def block_time_ns(summary: Summary, rank: int | None = None) -> int:
    """The blocks' time, which all shares of waits and regions refer to: tracks x time with a launch
    running on some rank; of all ranks or of one.

    On unaligned clocks a rank's own launches count. Where launches overlap on a rank (streams),
    their tracks count in each.
    """
    times = _block_times_ns(summary)
    return sum(times.values()) if rank is None else times.get(rank, 0)


@memo
def _block_times_ns(summary: Summary) -> dict[int, int]:
    own = rank_efficiency(summary).set_index("rank")
    if own.empty:
        return {}
    spans = summary.frame(
        "SELECT rank, total(last_ns - first_ns) AS ns FROM tracks GROUP BY rank"
    ).set_index("rank")["ns"]
    is_one = summary.trace.is_on_one_clock
    window_ns = int(efficiency(summary)["window_ns"].iloc[0]) if is_one else own["window_ns"]
    times = (own["locations"] * window_ns).clip(lower=spans)
    return dict(zip(times.index.tolist(), times.astype("int64").tolist(), strict=True))


def histogram(summary: Summary) -> Table:
    """Number of events by rank, region and duration: rank, region, category, from_ns (of the
    bucket), events. Calls that hung are left out."""
    summary = ended_calls(summary)
    summary.require_buckets()
    return summary.frame(
        f"""
        SELECT rank, coalesce(name, 'unknown region') AS region,
            coalesce(category, 'other') AS category,
            pow(2, bucket / {SUB_BUCKETS}.0) AS from_ns, events
        FROM buckets LEFT JOIN regions ON id = region_id ORDER BY rank, region, bucket"""
    )


def _percentile(share: float) -> str:
    """The middle of the bucket that holds the event of rank ceil(share * count)."""
    bucket = f"min(bucket) FILTER (up_to >= ceil({share} * count))"
    return f"pow(2, ({bucket} + 0.5) / {SUB_BUCKETS})"


def _clip(column: str) -> str:
    return f"least(greatest({column}, min_ns), max_ns) AS {column}"


_ESTIMATES_SQL: Final = f"""cumulated AS (
            SELECT region_id, bucket, sum(sum(events))
                OVER (PARTITION BY region_id ORDER BY bucket) AS up_to
            FROM buckets GROUP BY region_id, bucket),
        percentiles AS (
            SELECT region_id, {_percentile(0.5)} AS median_ns, {_percentile(0.95)} AS p95_ns,
                {_percentile(0.99)} AS p99_ns
            FROM cumulated JOIN totals USING (region_id) GROUP BY region_id)"""

_EXACT_SQL: Final = f"""exact AS (
            SELECT coalesce(r.id, 0) AS region_id,
                quantile_disc(e.duration_ns, [0.5, 0.95, 0.99]) AS q
            FROM selected_raw_events e LEFT JOIN raw_regions r ON r.rank = e.rank
                AND r.local_id = e.region
            WHERE coalesce(r.kind, 'span') = 'span' AND e.flags & {EVENT_OPEN} = 0 GROUP BY 1),
        percentiles AS (
            SELECT region_id, CAST(q[1] AS DOUBLE) AS median_ns, CAST(q[2] AS DOUBLE) AS p95_ns,
                CAST(q[3] AS DOUBLE) AS p99_ns FROM exact)"""
