"""One clock for GPUs that nothing has calibrated, from the collectives themselves: no channel ends
before those have begun whose data it needs (kprof.clocks.causality)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

from kprof.capture.losses import name_ranks
from kprof.capture.manifest import Alignment, ClockSegment, RankAlignment
from kprof.clocks.causality import align_by_limits
from kprof.clocks.limits import Limits, RankClock
from kprof.errors import ClockError
from kprof.nccl.collectives import BROADCAST, OPERATION, PAIR, REDUCE
from kprof.nccl.events import Rank

if TYPE_CHECKING:
    import pandas as pd

# Two processors of a GPU may see its clock a step apart.
STEP_NS: Final = 32.0
# Longer recordings are damaged ones: a ring keeps the latest events.
_LONGEST_NS: Final = 86_400 * 10**9
# Of more ranks, all are compared to the first only.
_MOST_COMPARED: Final = 16


def common_clock(
    channels: pd.DataFrame, ranks: Iterable[Rank], needed: frozenset[int]
) -> tuple[Alignment | None, str]:
    """The alignment of these ranks, or None and why there is none."""
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
    try:
        found = align_by_limits(_limits(channels), clocks, "collectives of NCCL")
    except ClockError as error:
        return None, f"the GPUs' clocks are not calibrated, and collectives do not tell: {error}"
    missing = sorted(needed - {entry.rank for entry in found.ranks})
    if missing:
        return None, f"no collective bounds the clock of {name_ranks(missing)}"
    return found, ""


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
        sent_ns, seen_ns = (joined[name].to_numpy(np.int64) for name in ("start_ns_x", "stop_ns_y"))
        found.append(Limits(before, after, sent_ns, seen_ns, np.arange(len(joined))))
    return found


def _compared(ranks: list[int]) -> list[tuple[int, int]]:
    firsts = ranks if len(ranks) <= _MOST_COMPARED else ranks[:1]
    pairs = {tuple(sorted((a, b))) for a in firsts for b in ranks if a != b}
    return [pair for a, b in sorted(pairs) for pair in ((a, b), (b, a))]
