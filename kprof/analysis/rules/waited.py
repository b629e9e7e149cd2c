"""Ranks that the others wait for, and launches that ranks enter at different times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kprof.analysis.dependencies.replay import RANK_AT_THE_MEDIAN, gain_ns
from kprof.analysis.durations import block_time_ns
from kprof.analysis.rules.finding import Finding
from kprof.analysis.rules.measure import (
    excess_wait_for,
    longest_waits_for,
    run_time_ns,
    severity_of_cost,
)
from kprof.analysis.rules.outliers import MIN_RATIO, by_number, medians_of_others, ratios_to_others
from kprof.analysis.skew import launch_starts
from kprof.analysis.waiting import blame, late_sender
from kprof.analysis.wording import counted, difference, duration, members, percent
from kprof.errors import ClockError, SelectionError

if TYPE_CHECKING:
    import pandas as pd

    from kprof.analysis.summary import Summary

# A wait that costs less than this share of the run is not worth a sentence.
MIN_SHARE: Final = 0.05


def late_senders(summary: Summary) -> list[Finding]:
    """Ranks that the others wait for clearly longer than for the median rank."""
    waits = longest_waits_for(summary)
    run_ns = max(run_time_ns(summary), 1)
    ratios = ratios_to_others(waits)
    findings = []
    for rank, waited_ns in by_number(waits).items():
        if waited_ns / run_ns < MIN_SHARE:
            # The excess is no more than the wait, and costs a look at all ranks.
            continue
        excess_ns = excess_wait_for(summary, rank)
        stands_out = not ratios[rank] < MIN_RATIO
        if stands_out and excess_ns / run_ns >= MIN_SHARE and not _is_in_flight(summary, rank):
            findings.append(_late_sender(summary, rank, waited_ns, excess_ns))
    return findings


def _is_in_flight(summary: Summary, peer: int) -> bool:
    """Most of the waiting for this rank is for data that it has sent: the link is slow, not the sender late."""
    split = _split(summary, peer)
    return bool(split) and split["exposed_transfer_ns"] > 2 * split["late_sender_ns"]


def _late_sender(summary: Summary, peer: int, waited_ns: float, excess_ns: float) -> Finding:
    rows = blame(summary)
    rows = rows[(rows["peer"] == peer) & (rows["rank"] != peer)]
    by_region = rows.groupby("region")["wait_ns"].sum().sort_values(ascending=False)
    region = str(by_region.index[0])
    waiting = sorted(set(rows.loc[rows["wait_ns"] > 0, "rank"].tolist()))
    share = rows["wait_ns"].sum() / max(1, sum(block_time_ns(summary, rank) for rank in waiting))
    split = _split(summary, peer)
    gained_ns, gain_share = _gain(summary, peer)
    hope = (
        f". If only rank {peer} were like the median rank, a call would end {duration(gained_ns)} "
    )
    hope = hope + f"({percent(gain_share)}) earlier" if gain_share >= MIN_SHARE else ""
    return Finding(
        id=f"late-sender/rank-{peer}",
        kind="late_sender",
        severity=severity_of_cost(summary, excess_ns),
        sentence=f"{members('rank', waiting)} spent {percent(share)} of block time waiting for rank {peer}, their "
        f"slowest blocks {duration(waited_ns)}; most of it in {region}{_split_in_words(split)}{hope}",
        remedy=f"look at what rank {peer} does before its sends; send earlier or overlap the wait with work",
        cost_ns=excess_ns,
        ranks=(peer,),
        region=region,
        evidence={
            "peer": peer,
            "waiting_ranks": waiting,
            "share_of_block_time": float(share),
            "wait_ns": int(rows["wait_ns"].sum()),
            "longest_wait_ns": waited_ns,
            "excess_wait_ns": excess_ns,
            "regions": {str(name): int(value) for name, value in by_region.items()},
            "gain_ns": gained_ns,
            "gain_share": gain_share,
        }
        | split,
    )


def _gain(summary: Summary, peer: int) -> tuple[float, float]:
    """What a replay with this rank at the median gains; nothing where it cannot be told."""
    try:
        return gain_ns(summary, RANK_AT_THE_MEDIAN, peer)
    except (ClockError, SelectionError):
        return 0.0, 0.0


def _split(summary: Summary, peer: int) -> dict[str, float]:
    """Late sender and exposed transfer of the waits for `peer`, where clocks allow."""
    try:
        table = late_sender(summary)
    except ClockError:
        return {}
    rows = table[(table["src"] == peer) & (table["dst"] != peer)]
    if rows.empty:
        return {}
    return {
        "late_sender_ns": int(rows["late_sender_ns"].sum()),
        "exposed_transfer_ns": int(rows["exposed_transfer_ns"].sum()),
        "flows": int(rows["flows"].sum()),
        "bound_ns": float(rows["bound_ns"].max()),
    }


def _split_in_words(split: dict[str, float]) -> str:
    if not split:
        return ""
    flows = max(1.0, split["flows"])
    late, exposed = split["late_sender_ns"] / flows, split["exposed_transfer_ns"] / flows
    bound = split["bound_ns"]
    return (
        f" (on average {difference(late, bound)} until the send starts and {difference(exposed, bound)} "
        "until the data is there)"
    )


def skewed_launches(summary: Summary) -> list[Finding]:
    """Ranks that enter launches later than the others although their launch before did not end later."""
    try:
        summary.trace.require_alignment("launch skew")
    except ClockError:
        return []
    delays = own_start_delays(summary)
    run_ns = max(run_time_ns(summary), 1)
    findings = []
    for rank, rows in delays.groupby("rank"):
        cost_ns = float(rows["delay_ns"].sum())
        if cost_ns / run_ns >= MIN_SHARE:
            findings.append(_skew(summary, int(str(rank)), rows[rows["delay_ns"] > 0], cost_ns))
    return findings


def own_start_delays(summary: Summary) -> pd.DataFrame:
    """How much later than the median of the others a rank starts a launch, less what it inherits from its
    launch before.

    Columns: kernel, ordinal, rank, first_ns, delay_ns. A rank whose kernel ended late starts the next one late:
    that is not the host's doing. Delays below the clock error bound are 0.
    """
    starts = launch_starts(summary).sort_values("first_ns")
    starts["gap_ns"] = starts["first_ns"] - starts.groupby("rank")["last_ns"].shift()
    late = starts.groupby(["kernel", "ordinal"])["first_ns"].transform(_over_median_of_others)
    own = starts.groupby(["kernel", "ordinal"])["gap_ns"].transform(_over_median_of_others)
    # The first launch of all has nothing before it; the first one that is left of a selection has, but not here.
    own = own.where(own.notna(), late.where(starts["ordinal"] == 0, 0.0))
    bounds = _worst_bounds_ns(summary)
    delay = late.clip(upper=own).clip(lower=0)
    starts["delay_ns"] = delay.where(delay > starts["rank"].map(bounds), 0.0)
    return starts[["kernel", "ordinal", "rank", "first_ns", "last_ns", "delay_ns"]]


def _over_median_of_others(values: pd.Series) -> pd.Series:
    excess: pd.Series = values - medians_of_others(values.to_numpy(dtype=float))
    return excess


def _worst_bounds_ns(summary: Summary) -> dict[int, float]:
    """By rank: the clock error bound against the rank whose clock is known least well."""
    entries = summary.trace.alignment.ranks if summary.trace.alignment else ()
    bounds = {entry.rank: entry.bound_ns for entry in entries}
    worst = sorted(bounds, key=lambda rank: -bounds[rank])[:2]
    return {
        info.rank: bounds.get(info.rank, 0.0)
        + max((bounds[rank] for rank in worst if rank != info.rank), default=0.0)
        for info in summary.trace.ranks
    }


def _skew(summary: Summary, rank: int, rows: pd.DataFrame, cost_ns: float) -> Finding:
    worst = rows.sort_values("delay_ns").to_dict("records")[-1]
    launches = counted(len(rows), "launch", "launches")
    return Finding(
        id=f"launch-skew/rank-{rank}",
        kind="launch_skew",
        severity=severity_of_cost(summary, cost_ns),
        sentence=f"rank {rank} starts {launches} later than the other ranks, at worst by {duration(worst['delay_ns'])} "
        f"({worst['kernel'] or 'kernel'} call {worst['ordinal']}): start skew, not slowness",
        remedy="look at the host side of that rank (allocations, Python, an uneven step before); "
        "a barrier would only move the wait",
        cost_ns=cost_ns,
        ranks=(rank,),
        evidence={
            "launches": len(rows),
            "worst_delay_ns": worst["delay_ns"],
            "delay_ns": cost_ns,
            "bound_ns": _worst_bounds_ns(summary)[rank],
        },
        where_ns=(int(worst["first_ns"] - worst["delay_ns"]), int(worst["last_ns"])),
    )
