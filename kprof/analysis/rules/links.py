"""Waits that are not a late sender's doing: data that is on its way, receivers without room, and waits in a bad
order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kprof.analysis.dependencies.replay import ARRIVAL_ORDER, gain_ns
from kprof.analysis.rules.finding import Finding, severity_of
from kprof.analysis.rules.measure import credit_regions, run_time_ns
from kprof.analysis.rules.outliers import MIN_RATIO, by_number, medians_of_others
from kprof.analysis.waiting import late_sender
from kprof.analysis.wording import difference, duration, listed, members, percent
from kprof.errors import ClockError, SelectionError

if TYPE_CHECKING:
    import pandas as pd

    from kprof.analysis.summary import Summary

MIN_SHARE: Final = 0.05
# All data is on its way for some time; only a tenth of the run is worth a sentence.
_MIN_TRANSFER_SHARE: Final = 0.1


def exposed_transfers(summary: Summary) -> list[Finding]:
    """Time that blocks wait for data that was sent: on one slow link, or on all of them."""
    try:
        table = late_sender(summary)
    except ClockError:
        return []
    table = table[table["src"] != table["dst"]].copy()
    if table.empty:
        return []
    table["per_flow_ns"] = table["exposed_transfer_ns"] / table["flows"]
    table["per_block_ns"] = table["exposed_transfer_ns"] / table["blocks"]
    slow = _slow_link(summary, table)
    return slow or _everywhere(summary, table)


def _slow_link(summary: Summary, table: pd.DataFrame) -> list[Finding]:
    """The link that costs its blocks most, if it stands out among all links."""
    run_ns = max(run_time_ns(summary), 1)
    # Many slow links have something in common, a rank for instance, and are no link's doing.
    if len(table) < 3:
        return []
    usual_flow = medians_of_others(table["per_flow_ns"].to_numpy())
    usual_block = medians_of_others(table["per_block_ns"].to_numpy())
    table["excess_ns"] = table["per_block_ns"] - usual_block
    standing = table[
        (table["per_flow_ns"] >= 2 * MIN_RATIO * usual_flow)
        & (table["per_flow_ns"] - usual_flow > table["bound_ns"])
        & (table["excess_ns"] >= _MIN_TRANSFER_SHARE * run_ns)
        & (table["exposed_transfer_ns"] >= table["late_sender_ns"])
    ]
    alone = standing[~_is_like_its_neighbours(table)[standing.index]]
    if alone.empty or len(standing) > max(2, (table["src"].nunique() - 1) // 2):
        return []
    row = alone.sort_values("excess_ns").to_dict("records")[-1]
    return [_slow_link_finding(row, _usual_on_this_link(table, row), run_ns)]


def _is_like_its_neighbours(table: pd.DataFrame) -> pd.Series:
    """Links that are no slower than the others into the same rank, or out of it: then it is that rank's doing."""
    is_like = table["src"] < 0
    for end in ("dst", "src"):
        flows = table.groupby(["region", end])["per_flow_ns"]
        usual = flows.transform(lambda values: medians_of_others(values.to_numpy()))
        is_like |= (flows.transform("size") > 2) & (table["per_flow_ns"] < MIN_RATIO * usual)
    return is_like


def _slow_link_finding(row: dict[Any, Any], usual: list[str], run_ns: float) -> Finding:
    src, dst, region = int(row["src"]), int(row["dst"]), str(row["region"])
    arrives = (
        f"arrives {difference(row['per_flow_ns'], row['bound_ns'])} after it was sent, on average"
    )
    costs = f"{duration(row['excess_ns'])} per waiting block in {region}"
    if usual:
        sentence = (
            f"what rank {src} sends to rank {dst} for {region} {arrives}, while data for {listed(usual)} "
            f"takes no longer on that link than on others: it is queued behind other stores, {costs}"
        )
        remedy = (
            f"let rank {src} send this before its bulk data, or from a block that has no other stores in flight; "
            "a fence before it waits for all of them"
        )
    else:
        sentence = f"data from rank {src} to rank {dst} {arrives}, where other links take much less: {costs}"
        remedy = (
            f"look at the link between ranks {src} and {dst} (topology, other traffic, access size)"
        )
    return Finding(
        id=f"exposed-transfer/{src}-{dst}/{region}",
        kind="exposed_transfer",
        severity=severity_of(row["excess_ns"] / run_ns),
        sentence=sentence,
        remedy=remedy,
        cost_ns=float(row["excess_ns"]),
        ranks=(src, dst),
        region=region,
        evidence={
            "src": src,
            "dst": dst,
            "exposed_per_flow_ns": row["per_flow_ns"],
            "bound_ns": row["bound_ns"],
            "flows": row["flows"],
            "usual_on_this_link": usual,
        },
    )


def _usual_on_this_link(table: pd.DataFrame, row: dict[Any, Any]) -> list[str]:
    """Regions with at least as many flows on a link that are as fast there as on other links: it is not slow itself."""
    src, dst, region = row["src"], row["dst"], row["region"]
    is_here = (table["src"] == src) & (table["dst"] == dst)
    flows = int(table.loc[is_here & (table["region"] == region), "flows"].sum())
    usual = []
    for other, rows in table[table["region"] != region].groupby("region"):
        here = rows[(rows["src"] == src) & (rows["dst"] == dst)]
        elsewhere = rows.drop(here.index)["per_flow_ns"].median()
        is_busy = int(here["flows"].sum()) >= flows
        if is_busy and float(here["per_flow_ns"].max()) < MIN_RATIO * elsewhere:
            usual.append(str(other))
    return usual


def _everywhere(summary: Summary, table: pd.DataFrame) -> list[Finding]:
    run_ns = max(run_time_ns(summary), 1)
    found = []
    for region, rows in table.groupby("region"):
        exposed, late = int(rows["exposed_transfer_ns"].sum()), int(rows["late_sender_ns"].sum())
        per_block_ns = exposed / max(
            1, int(rows["waiting_blocks"].groupby(rows["dst"]).max().sum())
        )
        if per_block_ns < _MIN_TRANSFER_SHARE * run_ns or exposed < late:
            continue
        each, bound = exposed / int(rows["flows"].sum()), float(rows["bound_ns"].max())
        found.append(
            Finding(
                id=f"exposed-transfer/{region}",
                kind="exposed_transfer",
                severity=severity_of(per_block_ns / run_ns),
                sentence=f"blocks wait {duration(per_block_ns)} each in {region} for data that was sent and is on "
                f"its way ({difference(each, bound)} per wait, on all links alike)",
                remedy="send earlier, in smaller pieces, or do other work meanwhile: split the launch in two "
                "halves that overlap",
                cost_ns=per_block_ns,
                ranks=tuple(sorted({int(rank) for rank in rows["dst"].tolist()})),
                region=str(region),
                evidence={
                    "exposed_transfer_ns": exposed,
                    "late_sender_ns": late,
                    "per_flow_ns": each,
                },
            )
        )
    return found


def back_pressure(summary: Summary) -> list[Finding]:
    """Senders that wait for room at the receiver: waits that name a peer, release no flow and stand before
    sends to it."""
    found = []
    for region_id, region in credit_regions(summary).items():
        longest_ns = _longest_in_region(summary, region_id)
        if longest_ns >= MIN_SHARE * run_time_ns(summary):
            found.append(_back_pressure(summary, region_id, region, longest_ns))
    return found


def _longest_in_region(summary: Summary, region_id: int) -> float:
    """Time in a region of the block that spends most in it, per launch, summed; the mean over ranks."""
    table = summary.frame(
        """
        WITH by_block AS (
            SELECT rank, launch, block, sum(total_ns) AS wait_ns FROM cells WHERE region_id = ? GROUP BY ALL),
        longest AS (SELECT rank, launch, max(wait_ns) AS wait_ns FROM by_block GROUP BY ALL)
        SELECT coalesce(sum(wait_ns) / nullif(count(DISTINCT rank), 0), 0.0) AS wait_ns FROM longest""",
        [region_id],
    )
    return float(table["wait_ns"].iloc[0])


def _back_pressure(summary: Summary, region_id: int, region: str, longest_ns: float) -> Finding:
    table = summary.frame(
        "SELECT peer, sum(total_ns) / sum(events) AS each_ns FROM cells WHERE region_id = ? AND peer >= 0 "
        "GROUP BY peer ORDER BY peer",
        [region_id],
    )
    each = table.set_index("peer")["each_ns"]
    usual = medians_of_others(each.to_numpy())
    standing = tuple(int(str(peer)) for peer in each.index[each.to_numpy() >= MIN_RATIO * usual])
    receivers = standing or tuple(by_number(each))
    share = longest_ns / max(run_time_ns(summary), 1)
    return Finding(
        id=f"back-pressure/{region}",
        kind="back_pressure",
        severity=severity_of(share),
        sentence=f"senders spend up to {duration(longest_ns)} per block in {region} ({percent(share)} of the run) "
        f"until {members('rank', receivers)} {'has' if len(receivers) == 1 else 'have'} room",
        remedy="give the receiver more buffers, or let it drain them sooner (more blocks on the receiving side)",
        cost_ns=longest_ns,
        ranks=receivers,
        region=region,
        evidence={
            "longest_wait_ns": longest_ns,
            "wait_each_ns": dict(zip(map(str, each.index), each.tolist(), strict=True)),
        },
    )


def serialised_waits(summary: Summary) -> list[Finding]:
    """Tracks that wait in a fixed order while data that they wait for later is there already."""
    try:
        gained_ns, gain_share = gain_ns(summary, ARRIVAL_ORDER)
    except (ClockError, SelectionError):
        return []
    if gain_share < MIN_SHARE:
        return []
    cost_ns = gain_share * run_time_ns(summary)
    region = _waiting_region(summary)
    return [
        Finding(
            id="serialised-waits",
            kind="serialised_waits",
            severity=severity_of(gain_share),
            sentence=f"blocks wait in a fixed order in {region} while other data is there already: taken in the order "
            f"of arrival, a call would end {duration(gained_ns)} ({percent(gain_share)}) earlier",
            remedy="poll all sources in turn and take what has arrived, or start with the next rank instead of rank 0",
            cost_ns=cost_ns,
            ranks=tuple(info.rank for info in summary.trace.ranks),
            region=region,
            evidence={"gain_ns": gained_ns, "gain_share": gain_share},
        )
    ]


def _waiting_region(summary: Summary) -> str:
    """The region of flows with the most waiting."""
    table = late_sender(summary).groupby("region")["wait_ns"].sum()
    return str(table.idxmax()) if len(table) else ""
