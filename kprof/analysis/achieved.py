"""Achieved rates compared to what the device can do: GB/s and FLOP/s by region, link and processor.

Regions count bytes and operations in the payload fields `bytes` and `flops`. Rates are over the
time in which the region (link, processor) was in use: from the first start to the last end in each
launch, summed over launches. Launches of a warm-up are left out. Ceilings are those of `kprof
doctor --measure` at the time of the recording, NaN if it was not run. GB are 10^9 bytes, GFLOP 10^9
operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kprof.analysis.metric import metric
from kprof.analysis.summary import CLOSED_SPANS
from kprof.analysis.warmup import steady_part
from kprof.errors import SelectionError

if TYPE_CHECKING:
    import pandas as pd

    from kprof.analysis.summary import Summary

_MAX_EVENTS_READ: Final = 5_000_000
_NAN: Final = float("nan")


@metric()
def achieved_by_region(summary: Summary) -> pd.DataFrame:
    """Rates of every region that counts bytes or operations, per rank.

    Columns: rank, region, category, bytes, flops, busy_ns, gb_s, gflop_s, ceiling_gb_s,
    ceiling_share. The ceiling is that of a copy within the device, or to one peer if the region
    sends or receives and names its peer. If each pair has its own link, data for several peers may
    exceed it.
    """
    summary = steady_part(summary)[0]
    table = summary.frame(
        f"""WITH counted AS ({_counted_sql(summary)}), used AS (
                SELECT rank, region, any_value(category) AS category, launch, bool_or(peer >= 0)
                    AS has_peer,
                    {_USE_SQL} FROM counted GROUP BY rank, region, launch)
            SELECT rank, region, any_value(category) AS category,
                bool_or(has_peer) AND any_value(category) IN ('send', 'recv') AS is_far,
                    {_RATES_SQL}
            FROM used GROUP BY rank, region ORDER BY rank, region"""
    )
    near, far = _copy_gb_s(summary), _peer_gb_s(summary)
    table["ceiling_gb_s"] = table["rank"].map(near).where(~table["is_far"], table["rank"].map(far))
    return _compared(table.drop(columns="is_far"))


@metric()
def achieved_by_link(summary: Summary) -> pd.DataFrame:
    """Rates of every pair of ranks, from regions that send or receive and name their peer.

    Columns: rank (whose kernel moves the data), peer, bytes, flops, busy_ns, gb_s, gflop_s,
    ceiling_gb_s, ceiling_share.
    """
    summary = steady_part(summary)[0]
    table = summary.frame(
        f"""WITH counted AS ({_counted_sql(summary)}), used AS (
                SELECT rank, peer, launch, {_USE_SQL} FROM counted
                WHERE category IN ('send', 'recv') AND peer >= 0 AND peer <> rank GROUP BY rank,
                    peer, launch)
            SELECT rank, peer, {_RATES_SQL} FROM used GROUP BY rank, peer ORDER BY rank, peer"""
    )
    table["ceiling_gb_s"] = table["rank"].map(_peer_gb_s(summary))
    return _compared(table)


@metric()
def achieved_by_processor(summary: Summary) -> pd.DataFrame:
    """Rates of every SM or CU. Raises SelectionError for more than five million events.

    Columns: rank, hw_id, bytes, flops, busy_ns, gb_s, gflop_s, ceiling_gb_s (the device's, divided
    by its processors), ceiling_share.
    """
    summary = steady_part(summary)[0]
    table = summary.frame(
        f"""WITH counted AS ({_counted_events_sql(summary)}), used AS (
                SELECT rank, hw_id, launch, {_USE_SQL} FROM counted GROUP BY rank, hw_id, launch)
            SELECT rank, hw_id, {_RATES_SQL} FROM used GROUP BY rank, hw_id ORDER BY rank, hw_id"""
    )
    # Ceilings of the CPU target are for one core.
    num_processors = {info.rank: max(1, info.num_processors) for info in summary.trace.ranks}
    shares = {rank: rate / num_processors[rank] for rank, rate in _copy_gb_s(summary).items()}
    table["ceiling_gb_s"] = table["rank"].map(shares)
    return _compared(table)


_USE_SQL: Final = """sum(bytes) AS bytes, sum(flops) AS flops,
    max(last_ns) - min(first_ns) AS busy_ns"""
_RATES_SQL: Final = """
    CAST(sum(bytes) AS BIGINT) AS bytes, CAST(sum(flops) AS BIGINT) AS flops,
    CAST(sum(busy_ns) AS BIGINT) AS busy_ns,
    coalesce(sum(bytes) / nullif(sum(busy_ns), 0), 0.0) AS gb_s,
    coalesce(sum(flops) / nullif(sum(busy_ns), 0), 0.0) AS gflop_s"""


def _counted_sql(summary: Summary) -> str:
    """SQL for counted bytes, from the summaries.

    Operations are not in them and are read from the events.
    """
    if _counts_flops(summary):
        return _counted_events_sql(summary)
    return """
        SELECT c.rank, r.name AS region, r.category, c.launch, c.peer, c.bytes, 0 AS flops,
            c.first_ns, c.last_ns
        FROM cells c JOIN regions r ON r.id = c.region_id WHERE c.bytes > 0"""


def _counted_events_sql(summary: Summary) -> str:
    num_events = summary.trace.num_events()
    if num_events > _MAX_EVENTS_READ:
        raise SelectionError(
            f"rates of processors and of operations read all events, and {num_events:,} are more "
            "than "
            f"{_MAX_EVENTS_READ:,}; select a few launches to see them"
        )
    flops = "coalesce(flops, 0)" if _counts_flops(summary) else "0"
    return f"""
        SELECT rank, region, category, launch, hw_id, coalesce(peer, -1) AS peer,
            coalesce(bytes, 0) AS bytes, {flops} AS flops, start_ns AS first_ns, end_ns AS last_ns
        FROM events WHERE {CLOSED_SPANS} AND (bytes > 0 OR {flops} > 0)"""


def _counts_flops(summary: Summary) -> bool:
    return any(region.field("flops") for region in summary.trace.regions.regions)


def _copy_gb_s(summary: Summary) -> dict[int, float]:
    """The rate of a copy within each rank's device, NaN where it was not measured."""
    return {
        info.rank: (info.ceilings.copy_gb_s if info.ceilings else 0.0) or _NAN
        for info in summary.trace.ranks
    }


def _peer_gb_s(summary: Summary) -> dict[int, float]:
    """The rate of a copy from each rank's device to its best peer, NaN where not measured."""
    return {
        info.rank: (info.ceilings.peer_gb_s if info.ceilings else 0.0) or _NAN
        for info in summary.trace.ranks
    }


def _compared(table: pd.DataFrame) -> pd.DataFrame:
    table["ceiling_gb_s"] = table["ceiling_gb_s"].astype("float64")
    table["ceiling_share"] = table["gb_s"] / table["ceiling_gb_s"]
    return table
