"""Which rank never entered a collective that others wait in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from kprof.capture.losses import name_ranks
from kprof.nccl.events import COLL, KERNEL_CH, Rank, names_of
from kprof.nccl.ring import Ring
from kprof.on_use import pd

_MOST_SAID: Final = 8


def never_entered(
    rings: Sequence[Ring], ranks: Mapping[tuple[int, int], Rank], *, is_over: bool = True
) -> list[str]:
    """A sentence for each collective that never ended on a rank while others never entered it, or
    on any, or that does not end in a run that is not over."""
    tables = [_entries(idx, ring, ranks) for idx, ring in enumerate(rings)]
    entered = pd.concat(tables, ignore_index=True)
    names = names_of(each.comm for each in ranks.values())
    said = []
    for number, name in names.items():
        members = {each.rank for each in ranks.values() if each.comm.id == number}
        sizes = [each.comm.num_ranks for each in ranks.values() if each.comm.id == number]
        of_comm = entered[entered["comm"] == number]
        for func in of_comm["func"].drop_duplicates():
            rows = of_comm[of_comm["func"] == func]
            latest = rows.groupby("rank")["seq"].max().to_dict()
            seq = max(latest.values())
            missing = [rank for rank in sorted(members) if latest.get(rank, -1) < seq]
            silent = max(sizes) - len(members)
            is_open = ~rows.loc[rows["seq"] == seq, "has_ended"]
            # Where all have entered it, one rank that saw it end is enough.
            if is_open.any() if missing or silent else is_open.all():
                what = f"{func} {seq} of communicator {name}"
                said.append(_sentence(what, latest, missing, silent, is_over=is_over))
    return said[:_MOST_SAID]


def _entries(idx: int, ring: Ring, ranks: Mapping[tuple[int, int], Rank]) -> pd.DataFrame:
    """The collectives that a process has entered: rank, comm, func, seq, and whether each has ended
    on the GPU."""
    rows = ring.records
    starts = rows[rows["kind"] == COLL]
    is_known = [(idx, number - 1) in ranks for number in starts["comm"].tolist()]
    starts = starts[np.array(is_known, bool)]
    mine = [ranks[idx, number - 1] for number in starts["comm"].tolist()]
    ended = rows[(rows["kind"] == KERNEL_CH) & (rows["count"] > 0)]["subject"]
    return pd.DataFrame(
        {
            "rank": [each.rank for each in mine],
            "comm": np.array([each.comm.id for each in mine], np.uint64),
            "func": np.array(ring.texts, object)[starts["func"]],
            "seq": starts["value"].astype(np.int64),
            "has_ended": np.isin(starts["handle"], ended),
        }
    )


def _sentence(
    what: str, latest: Mapping[int, int], missing: Sequence[int], silent: int, *, is_over: bool
) -> str:
    """`silent` ranks of the communicator have recorded nothing."""
    inside = sorted(rank for rank in latest if rank not in missing)
    never_ended, never_did = ("never ended", "never did") if is_over else ("waits", "has not")
    who = name_ranks(inside) if missing or silent else "all of its ranks"
    text = f"{what} {never_ended}: {who} entered it"
    for rank in missing:
        last = f"its last one there is {latest[rank]}" if rank in latest else "nor any before it"
        text += f"; rank {rank} {never_did}, {last}"
    if silent:
        text += f"; {silent} more rank{'s' if silent > 1 else ''} recorded nothing of NCCL"
    return text
