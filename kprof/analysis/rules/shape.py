"""The shape of launches: blocks that work long after the others have ended, blocks and processors that do nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kprof.analysis.rules.finding import Finding, severity_of
from kprof.analysis.rules.measure import run_time_ns
from kprof.analysis.summary import summarise
from kprof.analysis.wording import counted, duration, members, percent

if TYPE_CHECKING:
    import pandas as pd

    from kprof.trace import Trace

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


def tails(trace: Trace) -> list[Finding]:
    """Launches in which at most a tenth of a rank's blocks works for the last 20 % of the time or more."""
    summarise(trace)
    table = trace.frame(
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
    if not rows or rows[0]["tail_ns"] < _MIN_TAIL_SHARE * run_time_ns(trace):
        return []
    row = rows[0]
    rank, block = int(row["rank"]), int(row["block"])
    share = row["tail_ns"] / max(run_time_ns(trace), 1)
    others = len({int(other["rank"]) for other in rows}) - 1
    also = f" ({counted(others, 'more rank has', 'more ranks have')} one)" if others else ""
    return [
        Finding(
            id=f"tail/rank-{rank}",
            kind="tail",
            severity=severity_of(share),
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


def idle_blocks(trace: Trace) -> list[Finding]:
    """Ranks on which a quarter of the blocks or more does under a tenth of the work of the median busy block.

    Blocks that were launched and recorded nothing count where the launch says how many there were.
    """
    summarise(trace)
    table = trace.frame(
        """
        WITH by_block AS (SELECT rank, block, sum(work_ns) AS work_ns FROM tracks GROUP BY rank, block),
        usual AS (SELECT rank, quantile_disc(work_ns, 0.75) AS usual_ns FROM by_block GROUP BY rank),
        launched AS (SELECT rank, max(num_blocks) AS blocks FROM launches WHERE (rank, launch) IN (
            SELECT (rank, launch) FROM tracks) GROUP BY rank),
        counted AS (
            SELECT rank, count(*) AS recorded, count(*) FILTER (work_ns >= 0.1 * usual_ns) AS busy,
                avg(work_ns) FILTER (work_ns >= 0.1 * usual_ns) AS busy_ns
            FROM by_block JOIN usual USING (rank) GROUP BY rank)
        SELECT rank, greatest(recorded, coalesce(blocks, 0)) AS blocks, busy, coalesce(busy_ns, 0) AS busy_ns
        FROM counted LEFT JOIN launched USING (rank) ORDER BY rank"""
    )
    table["idle"] = 1 - table["busy"] / table["blocks"]
    idle = table[(table["blocks"] > 1) & (table["idle"] >= _MIN_IDLE)]
    # Spread over all blocks, the work of the busy ones would take that much less.
    cost_ns = float((idle["idle"] * idle["busy_ns"]).median()) if len(idle) else 0.0
    share = cost_ns / max(run_time_ns(trace), 1)
    if share < MIN_SHARE:
        return []
    ranks = tuple(int(rank) for rank in idle["rank"].tolist())
    return [
        Finding(
            id="idle-blocks",
            kind="idle_blocks",
            severity=severity_of(share),
            sentence=f"{percent(float(idle['idle'].median()))} of the blocks of {members('rank', ranks)} do nothing: "
            f"{int(idle['busy'].median())} of {int(idle['blocks'].median())} blocks have all the work",
            remedy="spread the work over all blocks, or launch fewer; even spreading would save about "
            f"{duration(cost_ns)} per busy block",
            cost_ns=cost_ns,
            ranks=ranks,
            evidence={
                "blocks": int(idle["blocks"].median()),
                "busy_blocks": int(idle["busy"].median()),
            },
        )
    ]


def idle_processors(trace: Trace) -> list[Finding]:
    """Kernels whose blocks work for most of the time, on at most a quarter of the SMs (CUs) that the GPU has."""
    processors = {info.rank: info.num_processors for info in trace.ranks if info.num_processors}
    if not processors:
        return []
    summarise(trace)
    table = trace.frame(
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
    return [_idle_processors(trace, str(kernel), rows) for kernel, rows in few.groupby("kernel")]


def _idle_processors(trace: Trace, kernel: str, rows: pd.DataFrame) -> Finding:
    ranks = tuple(int(rank) for rank in rows["rank"].tolist())
    blocks, processors = int(rows["blocks"].max()), int(rows["processors"].min())
    # Spread over all processors the work would take that much less, if the links and the memory kept up.
    spread = 1 - rows["blocks"] / rows["processors"]
    cost_ns = float((rows["work_ns"] * rows["launches"] * spread).median())
    time, share = duration(rows["work_ns"].median()), percent(float(rows["share"].median()))
    return Finding(
        id=f"idle-processors/{kernel}",
        kind="idle_processors",
        severity=severity_of(cost_ns / max(run_time_ns(trace), 1)),
        sentence=f"{kernel} runs in {counted(blocks, 'block', 'blocks')} on a GPU of {processors} SMs (CUs), and each "
        f"works for {time} a launch, {share} of its time",
        remedy="give the work to more blocks, until the links or the memory are the limit",
        cost_ns=cost_ns,
        ranks=ranks,
        evidence={
            "blocks": blocks,
            "processors": processors,
            "work_ns": float(rows["work_ns"].median()),
        },
    )
