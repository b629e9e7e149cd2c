"""How long regions last: counts, sums and percentiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kprof.analysis.memo import memo
from kprof.analysis.metric import metric
from kprof.analysis.summary import SUB_BUCKETS

if TYPE_CHECKING:
    import pandas as pd

    from kprof.analysis.summary import Summary

# A percentile is the (geometric) middle of its bucket, kept between the true minimum and maximum.
PERCENTILE_ERROR: Final = 2 ** (0.5 / SUB_BUCKETS) - 1


@metric(name="regions")
def stats(summary: Summary) -> pd.DataFrame:
    """Durations per region, the longest total first.

    Columns: region, category, count, total_ns, mean_ns, median_ns, p95_ns, p99_ns, max_ns, share (of block
    time: the sum over launches and tracks of last end - first start). Percentiles come from a mergeable log2
    histogram with 16 buckets an octave: at most 2.2 % from the nearest-rank percentile. Open spans have no
    duration and do not count.
    """
    return summary.frame(
        f"""
        WITH totals AS (
            SELECT region_id, sum(events) AS count, sum(total_ns) AS total_ns, min(min_ns) AS min_ns,
                max(max_ns) AS max_ns
            FROM cells GROUP BY region_id),
        cumulated AS (
            SELECT region_id, bucket, sum(sum(events)) OVER (PARTITION BY region_id ORDER BY bucket) AS up_to
            FROM buckets GROUP BY region_id, bucket),
        percentiles AS (
            SELECT region_id, {_percentile(0.5)} AS median_ns, {_percentile(0.95)} AS p95_ns,
                {_percentile(0.99)} AS p99_ns
            FROM cumulated JOIN totals USING (region_id) GROUP BY region_id)
        SELECT coalesce(r.name, 'unknown region') AS region, coalesce(r.category, 'other') AS category,
            CAST(count AS BIGINT) AS count, CAST(t.total_ns AS BIGINT) AS total_ns, t.total_ns / count AS mean_ns,
            {_clip("median_ns")}, {_clip("p95_ns")}, {_clip("p99_ns")}, max_ns,
            coalesce(t.total_ns / nullif(({BLOCK_TIME_SQL}), 0), 0.0) AS share
        FROM totals t JOIN percentiles USING (region_id) LEFT JOIN regions r ON r.id = t.region_id
        ORDER BY t.total_ns DESC, region"""
    )


BLOCK_TIME_SQL: Final = "SELECT sum(last_ns - first_ns) FROM tracks"


@memo
def block_time_ns(summary: Summary, rank: int | None = None) -> int:
    """The sum over launches and tracks of last end - first start: what shares "of block time" refer to."""
    where = "" if rank is None else f" WHERE rank = {int(rank)}"
    frame = summary.frame(f"SELECT coalesce(({BLOCK_TIME_SQL}{where}), 0) AS block_time_ns")
    return int(frame["block_time_ns"].iloc[0])


def histogram(summary: Summary) -> pd.DataFrame:
    """Number of events by rank, region and duration: rank, region, category, from_ns (of the bucket),
    events."""
    return summary.frame(
        f"""
        SELECT rank, coalesce(name, 'unknown region') AS region, coalesce(category, 'other') AS category,
            pow(2, bucket / {SUB_BUCKETS}.0) AS from_ns, events
        FROM buckets LEFT JOIN regions ON id = region_id ORDER BY rank, region, bucket"""
    )


def _percentile(share: float) -> str:
    """The middle of the bucket that holds the event of rank ceil(share * count)."""
    bucket = f"min(bucket) FILTER (up_to >= ceil({share} * count))"
    return f"pow(2, ({bucket} + 0.5) / {SUB_BUCKETS})"


def _clip(column: str) -> str:
    return f"least(greatest({column}, min_ns), max_ns) AS {column}"
