"""Waits that name no rank: barriers where all wait for the last one, and locks that are held one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kprof.analysis.barriers import barrier_waits
from kprof.analysis.rules.finding import Finding
from kprof.analysis.rules.measure import run_time_ns, severity_of_cost
from kprof.analysis.wording import duration, percent

if TYPE_CHECKING:
    import pandas as pd

    from kprof.analysis.summary import Summary

# Noise alone makes tracks meet unevenly; below this share of the run a barrier is not worth a sentence.
MIN_SHARE: Final = 0.15


def barriers_and_locks(summary: Summary) -> list[Finding]:
    """Sync regions in which tracks spend 15 % of the run or more, with the rank that is last."""
    table = barrier_waits(summary)
    if table.empty:
        return []
    tracks = int(
        summary.frame("SELECT count(DISTINCT (rank, block, warp)) AS n FROM tracks")["n"].iloc[0]
    )
    found = []
    for region, rows in table.groupby("region"):
        is_lock = rows["scope"].iloc[0] == "lock"
        wait_ns = float(rows["wait_ns" if is_lock else "nxn_wait_ns"].sum()) / max(1, tracks)
        if wait_ns >= MIN_SHARE * run_time_ns(summary):
            make = _lock if is_lock else _barrier
            found.append(make(summary, str(region), rows, wait_ns))
    return found


def _lock(summary: Summary, region: str, rows: pd.DataFrame, wait_ns: float) -> Finding:
    return Finding(
        id=f"lock-contention/{region}",
        kind="lock_contention",
        severity=severity_of_cost(summary, wait_ns),
        sentence=f"blocks spend {duration(wait_ns)} each in {region} and leave it one by one: a lock that they queue "
        f"for ({int(rows['enters'].sum())} times)",
        remedy="shorten what is done under the lock, reduce locally first, or give every source a slice of its own",
        cost_ns=wait_ns,
        ranks=tuple(sorted({int(rank) for rank in rows["last_rank"].tolist()})),
        region=region,
        evidence={"enters": int(rows["enters"].sum()), "wait_ns": int(rows["wait_ns"].sum())},
    )


def _barrier(summary: Summary, region: str, rows: pd.DataFrame, wait_ns: float) -> Finding:
    by_last = rows.sort_values("nxn_wait_ns", ascending=False).to_dict("records")
    worst, total = by_last[0], max(1.0, float(rows["nxn_wait_ns"].sum()))
    share_of_last = worst["nxn_wait_ns"] / total
    scope = "all ranks" if worst["scope"] == "world" else "the blocks of a rank"
    who = f"{percent(share_of_last)} of it for rank {worst['last_rank']} (block {worst['last_block']} enters last)"
    if worst["scope"] == "rank":
        who = f"most on rank {worst['last_rank']}, where block {worst['last_block']} enters last"
    return Finding(
        id=f"barrier-wait/{region}",
        kind="barrier_wait",
        severity=severity_of_cost(summary, wait_ns),
        sentence=f"{scope} meet in {region} and spend {duration(wait_ns)} per block waiting for the last one, {who}",
        remedy=f"look at what rank {worst['last_rank']} does before {region}; replace the barrier by flags per source "
        "where not all need all",
        cost_ns=wait_ns,
        ranks=(int(worst["last_rank"]),),
        region=region,
        evidence={
            "peer": int(worst["last_rank"]) if share_of_last >= 0.5 else None,
            "scope": worst["scope"],
            "instances": int(rows["instances"].sum()),
            "nxn_wait_ns": int(rows["nxn_wait_ns"].sum()),
            "share_of_last_rank": share_of_last,
        },
    )
