"""One clock for GPUs that nothing has calibrated, from the collectives themselves
(kprof.clocks.causality): no channel ends before those have begun whose data it needs; none begins
before the host's call of it; and the host sees its end later than that was. So ranks of one machine
bound each other through its clock, too, and a rank that is late for every collective is no clock
that is ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from kprof.capture.losses import name_ranks
from kprof.capture.manifest import Alignment, ClockSegment, RankAlignment
from kprof.clocks.causality import align_by_limits
from kprof.clocks.limits import Limits, RankClock
from kprof.errors import ClockError
from kprof.nccl.collectives import BROADCAST, OPERATION, PAIR, REDUCE
from kprof.nccl.events import Rank
from kprof.nccl.ring import Ring
from kprof.on_use import pd

# Two processors of a GPU may see its clock a step apart.
STEP_NS: Final = 32.0
# Longer recordings are damaged ones: a ring keeps the latest events.
_LONGEST_NS: Final = 86_400 * 10**9
# Of more ranks, all are compared to the first only.
_MOST_COMPARED: Final = 16


def machines_of(rings: Sequence[Ring], ranks: Mapping[tuple[int, int], Rank]) -> dict[int, int]:
    """The machine of each rank."""
    return {each.rank: rings[idx].machine for (idx, _), each in ranks.items()}


def common_clock(
    channels: pd.DataFrame,
    ranks: Iterable[Rank],
    needed: frozenset[int],
    machines: Mapping[int, int],
) -> tuple[Alignment | None, str]:
    """The alignment of these ranks, or None and why there is none. Ranks with the same number of
    `machines`, by rank, have the same host's clock."""
    if len(needed) < 2:
        return None, ""
    uuids = {each.rank: each.comm.uuid for each in ranks}
    shared = {uuids.get(rank, "") for rank in needed}
    if len(shared) == 1 and "" not in shared:
        entries = (RankAlignment(r, (ClockSegment(0, 0.0),), STEP_NS / 2) for r in sorted(needed))
        return Alignment("one GPU", min(needed), tuple(entries)), ""
    clocks = _clocks(channels)
    if any(each.last_ns - each.first_ns > _LONGEST_NS for each in clocks.values()):
        return None, "the GPUs' clocks are not calibrated, and show more than a day"
    limits, (of_hosts, hosts) = _limits(channels), _by_hosts(channels, machines)
    try:
        found = _aligned([*limits, *of_hosts], clocks, hosts)
    except ClockError:
        # A host's clock that is set while the program runs is none.
        try:
            found = _aligned(limits, clocks, {})
        except ClockError as error:
            said = "the GPUs' clocks are not calibrated, and collectives do not tell"
            return None, f"{said}: {error}"
    missing = sorted(needed - {entry.rank for entry in found.ranks})
    if missing:
        return None, f"no collective bounds the clock of {name_ranks(missing)}"
    return found, ""


def _aligned(
    limits: list[Limits], clocks: dict[int, RankClock], hosts: dict[int, RankClock]
) -> Alignment:
    """Without the hosts; raises ClockError."""
    found = align_by_limits(limits, clocks | hosts, "collectives of NCCL")
    return msgspec.structs.replace(
        found,
        ranks=tuple(each for each in found.ranks if each.rank not in hosts),
        pairs=tuple(each for each in found.pairs if not hosts.keys() & {each.a, each.b}),
    )


def _by_hosts(
    channels: pd.DataFrame, machines: Mapping[int, int]
) -> tuple[list[Limits], dict[int, RankClock]]:
    """What the clocks of machines bound, which have numbers behind the last rank's."""
    first_host = 1 + max(machines, default=0)
    numbers = {each: first_host + i for i, each in enumerate(sorted({*machines.values()} - {0}))}
    limits, hosts = [], {}
    for machine, host in numbers.items():
        mine = channels[channels["rank"].isin([r for r, m in machines.items() if m == machine])]
        begun = mine[mine["begun_ns"] > 0]
        ended = mine[(mine["stop_ns"] >= 0) & (mine["ended_ns"] > 0)]
        if begun.empty or ended.empty:
            continue
        first_ns, last_ns = int(begun["begun_ns"].min()), int(ended["ended_ns"].max())
        # The host sees as much time go by as the GPUs do.
        seen_ns = int(mine["stop_ns"].max() - mine["start_ns"].min())
        if not first_ns < last_ns <= first_ns + 2 * max(seen_ns, 10**9):
            continue
        hosts[host] = RankClock(first_ns, last_ns, 1.0)
        for rank in mine["rank"].unique().tolist():
            launched, left = begun[begun["rank"] == rank], ended[ended["rank"] == rank]
            limits.append(_limit(host, rank, launched["begun_ns"], launched["start_ns"]))
            limits.append(_limit(rank, host, left["stop_ns"], left["ended_ns"]))
    return limits, hosts


def _limit(before: int, after: int, sent_ns: pd.Series[int], seen_ns: pd.Series[int]) -> Limits:
    sent, seen = (times.to_numpy().astype(np.int64) for times in (sent_ns, seen_ns))
    return Limits(before, after, sent, seen, np.arange(len(sent)))


def _clocks(channels: pd.DataFrame) -> dict[int, RankClock]:
    last_ns = channels["stop_ns"].where(channels["stop_ns"] > 0, channels["start_ns"])
    ends = (
        channels.assign(last_ns=last_ns).groupby("rank").agg({"start_ns": "min", "last_ns": "max"})
    )
    rows = ends.reset_index().to_numpy().tolist()
    return {rank: RankClock(first_ns, last_ns, STEP_NS) for rank, first_ns, last_ns in rows}


def _limits(channels: pd.DataFrame) -> list[Limits]:
    """Of the first channel of every call: the begin of one rank, and the end of another."""
    first = channels[
        channels["channel"] == channels.groupby(["rank", *OPERATION])["channel"].transform("min")
    ]
    first = first.assign(turn=first.groupby(["rank", *OPERATION]).cumcount())
    ended = first[first["stop_ns"] >= 0]
    found = []
    for before, after in _compared(sorted(first["rank"].drop_duplicates().tolist())):
        begun, left = first[first["rank"] == before], ended[ended["rank"] == after]
        joined = begun.merge(left, on=[*OPERATION, "turn", "channel"])
        needs = ~joined["func"].isin((BROADCAST, REDUCE)) & ~joined["func"].str.startswith(PAIR)
        needs |= (joined["func"] != REDUCE) & (joined["root_x"] == before)
        needs |= (joined["func"] == REDUCE) & (joined["root_x"] == after)
        joined = joined[needs]
        found.append(_limit(before, after, joined["start_ns_x"], joined["stop_ns_y"]))
    return found


def _compared(ranks: list[int]) -> list[tuple[int, int]]:
    firsts = ranks if len(ranks) <= _MOST_COMPARED else ranks[:1]
    pairs = {tuple(sorted((a, b))) for a in firsts for b in ranks if a != b}
    return [pair for a, b in sorted(pairs) for pair in ((a, b), (b, a))]
