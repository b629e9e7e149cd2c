"""Uneven work: ranks that send or process more than the others, and the blocks that get more than their
neighbours."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kprof.analysis.balance import imbalance
from kprof.analysis.rules.finding import Finding
from kprof.analysis.rules.measure import excess_wait_for, run_time_ns, severity_of_cost
from kprof.analysis.rules.outliers import (
    MIN_RATIO,
    by_number,
    counts_that_stand_out,
    ratios_to_others,
)
from kprof.analysis.summary import Summary
from kprof.analysis.wording import counted, duration, listed, members, ratio

if TYPE_CHECKING:
    import pandas as pd


# A block serves a peer when at least this share of its events in the region is with that peer.
_SERVES_SHARE: Final = 0.8
# With fewer events per block than this, chance leaves blocks without any.
_SPARSE: Final = 3


def uneven_ranks(summary: Summary) -> list[Finding]:
    """Ranks with 1.5 times the events (or bytes) of the median of the other ranks, in a region of useful
    work."""
    counts = _rank_counts(summary)
    standing: dict[int, list[tuple[str, str, str, float, float, float]]] = defaultdict(list)
    for (region, category), group in counts.groupby(["region", "category"], sort=False):
        quantity = "bytes" if (group["bytes"] > 0).all() else "events"
        values = group.set_index("rank")[quantity]
        ratios = ratios_to_others(values)[
            counts_that_stand_out(group.set_index("rank")["events"]).index
        ]
        for rank, value in by_number(ratios).items():
            amount = float(values[rank])
            standing[rank].append(
                (str(region), str(category), quantity, float(value), amount, amount / float(value))
            )
    return [_uneven_rank(summary, rank, rows) for rank, rows in standing.items()]


def _rank_counts(summary: Summary) -> pd.DataFrame:
    """region, category, rank, events, bytes of useful regions, with a row for every rank; sends first."""
    return summary.frame(
        """
        WITH used AS (SELECT DISTINCT r.id, r.name, r.category FROM regions r JOIN cells c ON c.region_id = r.id
            WHERE r.category IN ('send', 'compute', 'recv')),
        present AS (SELECT DISTINCT rank FROM tracks)
        SELECT u.name AS region, u.category, p.rank, coalesce(CAST(sum(c.events) AS BIGINT), 0) AS events,
            coalesce(CAST(sum(c.bytes) AS BIGINT), 0) AS bytes
        FROM used u CROSS JOIN present p LEFT JOIN cells c ON c.region_id = u.id AND c.rank = p.rank
        GROUP BY u.name, u.category, p.rank
        ORDER BY u.category = 'send' DESC, u.category = 'compute' DESC, u.name, p.rank"""
    )


_VERBS: Final = {"send": "sends", "recv": "receives", "compute": "has"}


def _uneven_rank(
    summary: Summary, rank: int, rows: list[tuple[str, str, str, float, float, float]]
) -> Finding:
    region, category, quantity, times, amount, usual = rows[0]
    what = _noun(summary, category, quantity)
    excess_ns = excess_wait_for(summary, rank)
    cost_ns = excess_ns or _excess_work_ns(summary, rank)
    is_felt = excess_ns >= 0.01 * run_time_ns(summary)
    seen = f"; the others wait up to {duration(excess_ns)} longer for it" if is_felt else ""
    return Finding(
        id=f"uneven-work/rank-{rank}",
        kind="uneven_work",
        severity=severity_of_cost(summary, cost_ns),
        sentence=f"rank {rank} {_VERBS[category]} {ratio(times)} the {what} of the median rank "
        f"({amount:,.0f} against {usual:,.0f} in {region}){seen}",
        remedy="even out the routing, or split the work of a launch so that the others overlap the wait with work",
        cost_ns=cost_ns,
        ranks=(rank,),
        region=region,
        evidence={
            "ratio": times,
            "quantity": quantity,
            "amount": amount,
            "median_of_others": usual,
            "excess_wait_ns": excess_ns,
            "regions": {row[0]: row[3] for row in rows},
        },
    )


def _noun(summary: Summary, category: str, quantity: str) -> str:
    """What is counted: tokens where the kernel's own regions speak of tokens."""
    if quantity == "bytes":
        return "bytes"
    if category == "compute":
        return "work items"
    return "tokens" if any("token" in name for name in summary.trace.regions.names) else "messages"


def _excess_work_ns(summary: Summary, rank: int) -> float:
    """Work per track beyond the median of the other ranks."""
    table = imbalance(summary, "rank").set_index("rank")
    per_track = table["work_ns"] / table["tracks"]
    usual = per_track.drop(rank).median()
    return max(0.0, float(per_track[rank] - usual)) if len(per_track) > 1 else 0.0


def uneven_blocks(summary: Summary) -> list[Finding]:
    """Blocks with 1.5 times the events of the median block of their rank in a region: one finding per cause.

    Blocks that serve one peer are grouped by that peer over all ranks, so that "block b serves source b % W"
    shows as one sentence. Only blocks that take part in the region are compared: a block with another job is
    not underloaded.
    """
    counts = _block_counts(summary)
    findings: dict[str, Finding] = {}
    for region, group in counts.groupby("region", sort=False):
        served = group[group["peer"] >= 0]
        for finding in _by_peer(summary, str(region), served) + _by_block(
            summary, str(region), group
        ):
            known = findings.get(finding.id)
            if known is None or finding.evidence["ratio"] > known.evidence["ratio"] * 1.05:
                findings[finding.id] = finding
    by_peer = {
        block for f in findings.values() if f.evidence["peer"] is not None for block in _places(f)
    }
    return [
        finding
        for finding in findings.values()
        if finding.evidence["peer"] is not None or not by_peer.issuperset(_places(finding))
    ]


def _places(finding: Finding) -> set[tuple[int, int]]:
    return {(int(r), b) for r, blocks in finding.evidence["blocks"].items() for b in blocks}


def _block_counts(summary: Summary) -> pd.DataFrame:
    """region, rank, block, events, median (of the rank's blocks in that region), peer (that the block serves,
    or -1).

    Blocks whose count is even with the median of their rank are needed only for peers that stand out, so all
    rows are kept when there are few and the even ones are left out beyond a hundred thousand.
    """
    return summary.frame(
        f"""
        WITH by_peer AS (
            SELECT region_id, rank, block, peer, sum(events) AS events FROM cells
            JOIN regions ON id = region_id WHERE category IN ('compute', 'send', 'recv', 'wait') GROUP BY ALL),
        by_block AS (
            SELECT region_id, rank, block, sum(events) AS events, max(events) AS most,
                arg_max(peer, events) AS main_peer
            FROM by_peer GROUP BY ALL),
        measured AS (
            SELECT *, median(events) OVER (PARTITION BY region_id, rank) AS median,
                count(*) OVER (PARTITION BY region_id, rank) AS blocks FROM by_block)
        SELECT name AS region, rank, block, CAST(events AS BIGINT) AS events, median,
            CASE WHEN most >= {_SERVES_SHARE} * events THEN main_peer ELSE -1 END AS peer
        FROM measured JOIN regions ON id = region_id WHERE blocks > 1
        ORDER BY category IN ('recv', 'wait') DESC, region, rank, block"""
    )


def _by_peer(summary: Summary, region: str, served: pd.DataFrame) -> list[Finding]:
    """Peers whose blocks get more: events per block that serves the peer, over all ranks.

    All blocks of such a peer are named, also one that got few this time: what ties them to the peer is the
    same.
    """
    per_peer = served.groupby("peer")["events"].agg(["sum", "count"])
    if len(per_peer) < 2:
        return []
    # A block that a peer with few events left without any has no row here, and is still one of its blocks.
    is_sparse = per_peer["sum"] < _SPARSE * per_peer["count"]
    could_serve = per_peer["sum"].clip(upper=per_peer["count"].max())
    blocks = per_peer["count"].where(~is_sparse, could_serve)
    ratios = ratios_to_others(per_peer["sum"] / blocks)
    standing = set(counts_that_stand_out(per_peer["sum"]).index.tolist())
    return [
        _uneven_group(summary, region, served[served["peer"] == peer], peer, times)
        for peer, times in by_number(ratios).items()
        if peer in standing and times >= MIN_RATIO
    ]


def _by_block(summary: Summary, region: str, group: pd.DataFrame) -> list[Finding]:
    """Blocks that stand out on their own, whoever they serve: on their rank, or on all ranks together.

    Where a block has an event or three, chance explains the difference on one rank, but not the same on all of them.
    """
    total = group.groupby("block")["events"].sum()
    is_more = group["events"] >= MIN_RATIO * group["median"]
    # One rank alone must not speak for the others.
    is_alike = is_more.groupby(group["block"]).mean() > 0.5
    on_all = _stand_out(total, total.median()) & is_alike
    rows = group[
        _stand_out(group["events"], group["median"]) | (is_more & group["block"].map(on_all))
    ]
    if rows.empty:
        return []
    times = float((rows["events"] / rows["median"].clip(lower=1)).median())
    return [_uneven_group(summary, region, rows, None, times)] if times >= MIN_RATIO else []


def _stand_out(events: pd.Series, median: Any) -> pd.Series:
    """Counts beyond MIN_RATIO and four standard deviations of a random count."""
    sigma = np.maximum(median, 1) ** 0.5
    stands: pd.Series = (events >= MIN_RATIO * median) & (events - median >= 4.0 * sigma)
    return stands


def _uneven_group(
    summary: Summary, region: str, rows: pd.DataFrame, peer: int | None, times: float
) -> Finding:
    blocks = {int(str(r)): sorted(map(int, g["block"])) for r, g in rows.groupby("rank")}
    cost_ns, affected = _excess_block_work_ns(summary, blocks)
    serve = f"; they serve rank {peer}" if peer is not None else ""
    extra = f", {duration(cost_ns)} more work than the median block" if cost_ns else ""
    return Finding(
        id=f"uneven-work/blocks-for-rank-{peer}" if peer is not None else "uneven-work/blocks",
        kind="uneven_work",
        severity=severity_of_cost(summary, cost_ns),
        sentence=f"{_places_in_words(blocks)} got {ratio(times)} the events of the median block in {region}"
        f"{extra}{serve}",
        remedy="deal the items out over all blocks (a prefix sum over the counts) instead of tying blocks to a source",
        cost_ns=cost_ns,
        ranks=tuple(sorted(blocks)),
        blocks=tuple(sorted({block for members_ in blocks.values() for block in members_})),
        region=region,
        evidence={"ratio": times, "peer": peer, "blocks": _keyed(blocks), "worst_rank": affected},
    )


def _keyed(blocks: dict[int, list[int]]) -> dict[str, Any]:
    return {str(rank): numbers for rank, numbers in sorted(blocks.items())}


def _places_in_words(blocks: dict[int, list[int]]) -> str:
    """Ranks with the same blocks share a clause; at most three clauses are spelled out."""
    ranks_of: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank, numbers in blocks.items():
        ranks_of[tuple(numbers)].append(rank)
    groups = sorted(ranks_of.items(), key=lambda item: -len(item[1]))
    clauses = [
        f"{members('block', numbers)} of {members('rank', ranks)}" for numbers, ranks in groups[:3]
    ]
    left = sum(len(ranks) for _, ranks in groups[3:])
    if left:
        clauses.append(f"blocks of {counted(left, 'more rank', 'more ranks')}")
    return listed(clauses, "; ")


def _excess_block_work_ns(summary: Summary, blocks: dict[int, list[int]]) -> tuple[float, int]:
    """How much longer than its median block the slowest of these works, on the rank where that is most."""
    table = imbalance(summary, "block")
    table["per_track_ns"] = table["work_ns"] / table["tracks"]
    worst, worst_rank = 0.0, min(blocks)
    for rank, numbers in blocks.items():
        work = table[table["rank"] == rank].set_index("block")["per_track_ns"]
        excess = float(work[numbers].max() - work.median())
        if excess > worst:
            worst, worst_rank = excess, rank
    return worst, worst_rank
