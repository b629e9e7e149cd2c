"""Channels whose times are those of a later call.

NCCL keeps the times of the latest 64 works of a channel, and a thread of its own reads them. Where
that thread comes later than 64 works, it reads what the later ones have left there, and tells it as
the call's. That is seen where a later call of the channel begins earlier, and where a rank begins
after another one has ended that needs its data.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kprof.nccl.collectives import BROADCAST, OPERATION, PAIR, REDUCE
from kprof.on_use import pd


def by_order(channels: pd.DataFrame) -> NDArray[np.bool_]:
    """Which rows begin after a later call of the same function and channel has begun."""
    if channels.empty:
        return np.zeros(0, bool)
    order = channels.sort_values("seq", kind="stable")
    same = [order[name] for name in ("rank", "comm", "func", "channel")]
    # The least begin from a call on: of each group from its end.
    backwards = order["start_ns"][::-1]
    least = backwards.groupby([each[::-1] for each in same], sort=False).cummin()
    return (channels["start_ns"] > least.reindex(channels.index)).to_numpy(bool)


def by_others(
    channels: pd.DataFrame, correction_ns: NDArray[np.int64], bound_ns: float
) -> NDArray[np.bool_]:
    """Which rows begin after another rank has ended that needs their data, on clocks that are
    `bound_ns` right once `correction_ns` is added."""
    if channels.empty:
        return np.zeros(0, bool)
    aligned = channels.assign(
        begun=channels["start_ns"] + correction_ns,
        ended=(channels["stop_ns"] + correction_ns).where(channels["stop_ns"] >= 0),
    )
    turn = aligned.groupby(["rank", *OPERATION, "channel"], sort=False).cumcount()
    call = [*(aligned[name] for name in (*OPERATION, "channel")), turn]
    first_ns = aligned.groupby(call, sort=False)["ended"].transform("min")
    needs_all = ~channels["func"].isin((BROADCAST, REDUCE))
    needs_all &= ~channels["func"].str.startswith(PAIR)
    return (needs_all & (aligned["begun"] > first_ns + 2 * bound_ns)).to_numpy(bool)
