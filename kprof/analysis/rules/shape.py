"""The shape of launches: blocks that work long after the others have ended, blocks and processors that do nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kprof.analysis.rules.finding import Finding
from kprof.analysis.rules.measure import run_time_ns, severity_of_cost
from kprof.analysis.summary import Summary
from kprof.analysis.wording import counted, duration, members, percent

if TYPE_CHECKING:
    import pandas as pd


MIN_SHARE: Final = 0.05
# The last of hundreds of blocks is late by chance too.
_MIN_TAIL_SHARE: Final = 0.15
# A tail is what is left of a launch when nine of ten blocks have ended.
_ENDED: Final = 0.9
_MIN_TAIL: Final = 0.2
_MIN_BLOCKS: Final = 8
_MIN_IDLE: Final = 0.25
# A launch of few blocks is a choice, and the right one where latency is all. It is not where each block works for so
# long, and for most of the time.
_FEW_BLOCKS: Final = 0.25
_MIN_WORK_NS: Final = 20_000
_MIN_WORK_SHARE: Final = 0.5


def tails(summary: Summary) -> list[Finding]:
    """Launches in which at most a tenth of a rank's blocks works for the last 20 % of the time or more."""
    table = summary.frame(
        f"""
        WITH ends AS (
            SELECT rank, launch, least(quantile_disc(last_useful_ns, {_ENDED}),
                    list_extract(max(last_useful_ns, 2), 2)) AS most_ended,
                max(last_useful_ns) AS last_ended,
                arg_max(block, last_useful_ns) AS block, count(*) AS tracks, max(last_ns) - min(first_ns) AS length_ns
            FROM tracks WHERE last_useful_ns IS NOT NULL GROUP BY rank, launch)
        SELECT rank, block, count(*) AS launches, CAST(sum(last_ended - most_ended) AS BIGINT) AS tail_ns,
            CAST(sum(length_ns) AS BIGINT) AS length_ns
        FROM ends WHERE tracks >= {_MIN_BLOCKS} AND last_ended - most_ended >= {_MIN_TAIL} * length_ns
        GROUP BY rank, block ORDER BY tail_ns DESC, rank, block"""
    )
    rows = table.to_dict("records")
    if not rows or rows[0]["tail_ns"] < _MIN_TAIL_SHARE * run_time_ns(summary):
        return []
    row = rows[0]
    rank, block = int(row["rank"]), int(row["block"])
    others = len({int(other["rank"]) for other in rows}) - 1
    also = f" ({counted(others, 'more rank has', 'more ranks have')} one)" if others else ""
    return [
        Finding(
            id=f"tail/rank-{rank}",
            kind="tail",
            severity=severity_of_cost(summary, row["tail_ns"]),
            sentence=f"block {block} of rank {rank} still works when nine of ten blocks of its rank have ended: a tail "
            f"of {duration(row['tail_ns'])} in {counted(row['launches'], 'launch', 'launches')}{also}",
            remedy="start the longest item first, or split it over several blocks",
            cost_ns=float(row["tail_ns"]),
            ranks=(rank,),
            blocks=(block,),
            evidence={
                "tail_ns": row["tail_ns"],
                "launches": row["launches"],
                "share_of_launch": row["tail_ns"] / row["length_ns"],
            },
        )
    ]


def idle_blocks(summary: Summary) -> list[Finding]:
    """Kernels in which a quarter of a rank's blocks or more does under a tenth of the work of a usual busy block.

    What it costs is what the rank that works longest would save with the work spread over all blocks; a track (a
    block, or a warp of one) that has a single item cannot share it.
    """
    table = _busy_blocks(summary).merge(_items_per_track(summary), on=["kernel", "rank"])
    table["idle"] = 1 - table["busy"] / table["blocks"]
    spread = (1 - table["idle"]).clip(lower=1 / table["items"])
    table["spread_ns"] = table["busy_ns"] * spread
    found = []
    for kernel, rows in table.groupby("kernel"):
        saved_ns = float(rows["busy_ns"].max() - rows["spread_ns"].max())
        idle = rows[(rows["blocks"] > 1) & (rows["idle"] >= _MIN_IDLE)]
        if len(idle) and saved_ns >= MIN_SHARE * run_time_ns(summary):
            found.append(_idle_blocks(summary, str(kernel), idle, saved_ns))
    return found


def _busy_blocks(summary: Summary) -> pd.DataFrame:
    """kernel, rank, blocks, busy, busy_ns: how many blocks there are, how many work, and for how long.

    Half of the work is in blocks that do as much as the usual one or more. Blocks that were launched and recorded
    nothing count where the launch says how many there were.
    """
    return summary.frame(
        """
        WITH by_block AS (
            SELECT kernel, rank, block, sum(work_ns) AS work_ns FROM tracks JOIN launches USING (rank, launch)
            GROUP BY kernel, rank, block),
        running AS (
            SELECT *, sum(work_ns) OVER (PARTITION BY kernel, rank) AS total_ns,
                sum(work_ns) OVER (PARTITION BY kernel, rank ORDER BY work_ns DESC, block) AS so_far_ns FROM by_block),
        usual AS (
            SELECT kernel, rank, min(work_ns) FILTER (so_far_ns - work_ns < total_ns / 2) AS usual_ns
            FROM running GROUP BY kernel, rank HAVING max(work_ns) > 0),
        launched AS (
            SELECT kernel, rank, max(num_blocks) AS blocks FROM launches
            WHERE (rank, launch) IN (SELECT (rank, launch) FROM tracks) GROUP BY kernel, rank)
        SELECT kernel, rank, greatest(count(*), max(blocks)) AS blocks,
            count(*) FILTER (work_ns >= 0.1 * usual_ns) AS busy,
            avg(work_ns) FILTER (work_ns >= 0.1 * usual_ns) AS busy_ns
        FROM by_block JOIN usual USING (kernel, rank) JOIN launched USING (kernel, rank)
        GROUP BY kernel, rank ORDER BY kernel, rank"""
    )


def _items_per_track(summary: Summary) -> pd.DataFrame:
    """kernel, rank, items, region: how often a working track does what is done most often, and where most time
    goes."""
    return summary.frame(
        """
        WITH by_region AS (
            SELECT l.kernel, rank, r.name AS region, sum(c.events) AS events, sum(c.total_ns) AS total_ns
            FROM cells c JOIN regions r ON r.id = c.region_id JOIN launches l USING (rank, launch)
            WHERE r.category IN ('send', 'recv', 'compute') GROUP BY ALL),
        working AS (
            SELECT kernel, rank, count(*) AS tracks FROM tracks JOIN launches USING (rank, launch)
            WHERE work_ns > 0 GROUP BY kernel, rank)
        SELECT kernel, rank, greatest(1, max(events) / any_value(tracks)) AS items, arg_max(region, total_ns) AS region
        FROM by_region JOIN working USING (kernel, rank) GROUP BY kernel, rank"""
    )


def _idle_blocks(summary: Summary, kernel: str, rows: pd.DataFrame, saved_ns: float) -> Finding:
    ranks = tuple(int(rank) for rank in rows["rank"].tolist())
    blocks, busy = int(rows["blocks"].median()), int(rows["busy"].median())
    return Finding(
        id=f"idle-blocks/{kernel}",
        kind="idle_blocks",
        severity=severity_of_cost(summary, saved_ns),
        sentence=f"{percent(float(rows['idle'].median()))} of the blocks of {members('rank', ranks)} do nothing in "
        f"{kernel}: {busy} of {blocks} blocks have all the work",
        remedy="spread the work over all blocks, or launch fewer; even spreading would save about "
        f"{duration(saved_ns)} per busy block",
        cost_ns=saved_ns,
        ranks=ranks,
        region=str(rows["region"].iloc[0]),
        evidence={"kernel": kernel, "blocks": blocks, "busy_blocks": busy},
    )


def idle_processors(summary: Summary) -> list[Finding]:
    """Kernels whose blocks work for most of the time, on at most a quarter of the SMs (CUs) that the GPU has."""
    processors = {
        info.rank: info.num_processors for info in summary.trace.ranks if info.num_processors
    }
    if not processors:
        return []
    table = summary.frame(
        """
        WITH by_block AS (
            SELECT rank, launch, block, sum(work_ns) AS work_ns, max(last_ns) - min(first_ns) AS length_ns
            FROM tracks GROUP BY rank, launch, block)
        SELECT kernel, rank, max(num_blocks) AS blocks, count(DISTINCT launch) AS launches,
            avg(work_ns) AS work_ns, sum(work_ns) / sum(length_ns) AS share
        FROM by_block JOIN launches USING (rank, launch) GROUP BY kernel, rank ORDER BY kernel, rank"""
    )
    table["processors"] = table["rank"].map(processors)
    few = table[
        (table["blocks"] > 0)
        & (table["blocks"] <= _FEW_BLOCKS * table["processors"])
        & (table["work_ns"] >= _MIN_WORK_NS)
        & (table["share"] >= _MIN_WORK_SHARE)
    ]
    return [_idle_processors(summary, str(kernel), rows) for kernel, rows in few.groupby("kernel")]


def _idle_processors(summary: Summary, kernel: str, rows: pd.DataFrame) -> Finding:
    ranks = tuple(int(rank) for rank in rows["rank"].tolist())
    blocks, processors = int(rows["blocks"].max()), int(rows["processors"].min())
    # Spread over all processors the work would take that much less, if the links and the memory kept up.
    spread = 1 - rows["blocks"] / rows["processors"]
    cost_ns = float((rows["work_ns"] * rows["launches"] * spread).median())
    time, share = duration(rows["work_ns"].median()), percent(float(rows["share"].median()))
    return Finding(
        id=f"idle-processors/{kernel}",
        kind="idle_processors",
        severity=severity_of_cost(summary, cost_ns),
        sentence=f"{kernel} runs in {counted(blocks, 'block', 'blocks')} on a GPU of {processors} SMs (CUs), and each "
        f"works for {time} a launch, {share} of its time",
        remedy="give the work to more blocks, until the links or the memory are the limit",
        cost_ns=cost_ns,
        ranks=ranks,
        evidence={
            "kernel": kernel,
            "blocks": blocks,
            "processors": processors,
            "work_ns": float(rows["work_ns"].median()),
        },
    )
