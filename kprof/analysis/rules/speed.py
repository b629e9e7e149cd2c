"""Uneven speed at even work: ranks and blocks that take longer for the same number of events. It needs another
fix than uneven work: look at the device, its clocks, its memory, not at the routing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kprof.analysis.rules.finding import Finding
from kprof.analysis.rules.measure import run_time_ns, severity_of_cost
from kprof.analysis.rules.outliers import MIN_RATIO, by_number, medians_of_others, ratios_to_others
from kprof.analysis.summary import Summary
from kprof.analysis.wording import duration, members, ratio

if TYPE_CHECKING:
    import pandas as pd


MIN_SHARE: Final = 0.05
# Work is even when a count is within this factor of the median of the others.
_EVEN: Final = 1.25


def uneven_speed_of_ranks(summary: Summary) -> list[Finding]:
    """Ranks whose median block takes 1.5 times as long per event as that of the other ranks, at an even number of
    events.

    One slow block would pull up a mean, and is no slow rank: `uneven_speed_of_blocks` names it.
    """
    table = summary.frame(
        """
        WITH sizes AS (SELECT rank, count(DISTINCT (block, warp)) AS tracks FROM tracks GROUP BY rank),
        by_block AS (
            SELECT r.name AS region, c.rank, c.block, sum(c.events) AS events,
                sum(c.total_ns) / sum(c.events) AS each_ns
            FROM cells c JOIN regions r ON r.id = c.region_id
            WHERE r.category IN ('compute', 'send', 'recv') GROUP BY r.name, c.rank, c.block)
        SELECT region, rank, any_value(s.tracks) AS tracks, CAST(sum(events) AS BIGINT) AS events,
            median(each_ns) AS each_ns
        FROM by_block JOIN sizes s USING (rank) GROUP BY region, rank ORDER BY region, rank"""
    )
    slow: dict[int, list[tuple[float, str, float]]] = {}
    for region, group in table.groupby("region"):
        rows = group.set_index("rank")
        is_even = ratios_to_others(rows["events"]).between(1 / _EVEN, _EVEN)
        usual = medians_of_others(rows["each_ns"].to_numpy())
        excess = (rows["each_ns"] - usual) * rows["events"] / rows["tracks"]
        standing = ratios_to_others(rows["each_ns"])[is_even]
        for rank, times in by_number(standing[standing >= MIN_RATIO]).items():
            slow.setdefault(rank, []).append((float(excess[rank]), str(region), times))
    found = [_slow_rank(summary, rank, sorted(rows, reverse=True)) for rank, rows in slow.items()]
    return [finding for finding in found if finding.cost_ns >= MIN_SHARE * run_time_ns(summary)]


def _slow_rank(summary: Summary, rank: int, rows: list[tuple[float, str, float]]) -> Finding:
    cost_ns = sum(row[0] for row in rows)
    _, region, times = rows[0]
    return Finding(
        id=f"uneven-speed/rank-{rank}",
        kind="uneven_speed",
        severity=severity_of_cost(summary, cost_ns),
        sentence=f"rank {rank} takes {ratio(times)} the time of the median rank for one {region}, at the same number "
        f"of them: {duration(cost_ns)} more per block",
        remedy=f"compare the device of rank {rank} with the others: clocks, power, memory, other work on it",
        cost_ns=cost_ns,
        ranks=(rank,),
        region=region,
        evidence={"ratio": times, "regions": {row[1]: row[2] for row in rows}},
    )


def uneven_speed_of_blocks(summary: Summary) -> list[Finding]:
    """Blocks with 1.5 times the time per event of the median block of their rank, in two regions or in many
    events.

    One long event at the end of a block is its tail, and another finding.
    """
    table = slow_blocks(summary)
    found = []
    for rank, rows in table.groupby("rank"):
        blocks = tuple(sorted(set(rows["block"].tolist())))
        cost_ns = float(rows.groupby("block")["excess_ns"].sum().max())
        if cost_ns >= MIN_SHARE * run_time_ns(summary):
            found.append(_slow_blocks(summary, int(str(rank)), blocks, rows, cost_ns))
    return found


def slow_blocks(summary: Summary) -> pd.DataFrame:
    """rank, block, region, events, mean_ns, ratio, excess_ns of the slow regions of slow blocks."""
    return summary.frame(
        f"""
        WITH by_block AS (
            SELECT r.name AS region, c.rank, c.block, sum(c.events) AS events,
                sum(c.total_ns) / sum(c.events) AS mean_ns, sum(c.events) / count(DISTINCT c.launch) AS per_launch
            FROM cells c JOIN regions r ON r.id = c.region_id
            WHERE r.category IN ('compute', 'send', 'recv') GROUP BY r.name, c.rank, c.block),
        measured AS (
            SELECT *, median(events) OVER peers AS usual_events, median(mean_ns) OVER peers AS usual_ns,
                count(*) OVER peers AS blocks
            FROM by_block WINDOW peers AS (PARTITION BY region, rank)),
        slow AS (
            SELECT rank, block, region, CAST(events AS BIGINT) AS events, mean_ns, mean_ns / usual_ns AS ratio,
                (mean_ns - usual_ns) * events AS excess_ns, per_launch FROM measured
            WHERE blocks > 2 AND usual_ns > 0 AND mean_ns >= {MIN_RATIO} * usual_ns
                AND events <= {_EVEN} * usual_events + 1 AND events * {_EVEN} + 1 >= usual_events)
        SELECT rank, block, region, events, mean_ns, ratio, excess_ns FROM slow
        QUALIFY count(*) OVER (PARTITION BY rank, block) > 1 OR per_launch > 2
        ORDER BY rank, block, excess_ns DESC"""
    )


def _slow_blocks(
    summary: Summary, rank: int, blocks: tuple[int, ...], rows: pd.DataFrame, cost_ns: float
) -> Finding:
    worst = rows.sort_values("excess_ns").to_dict("records")[-1]
    return Finding(
        id=f"uneven-speed/blocks-of-rank-{rank}",
        kind="uneven_speed",
        severity=severity_of_cost(summary, cost_ns),
        sentence=f"{members('block', blocks)} of rank {rank} took {ratio(worst['ratio'])} the time of the median block "
        f"for one {worst['region']}, at the same number of them: {duration(cost_ns)} in the slowest",
        remedy="look at what differs for these blocks: where they run, which memory they touch, what shares their SM",
        cost_ns=cost_ns,
        ranks=(rank,),
        blocks=blocks,
        region=str(worst["region"]),
        evidence={"ratio": worst["ratio"], "blocks": {str(rank): list(blocks)}},
    )
