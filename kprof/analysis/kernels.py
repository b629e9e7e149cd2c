"""What a call of several kernels is made of.

How much longer each makes it, and how well it fills the GPU.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from kprof.analysis.calls import launches_of_calls
from kprof.analysis.metric import metric
from kprof.analysis.replay.columns import running
from kprof.analysis.summary import Summary, Table
from kprof.analysis.warmup import steady_part

# In place of a kernel's name.
BETWEEN: Final = ""
_COLUMNS: Final = (
    *("kernel", "launches", "path_ns", "share", "median_ns"),
    *("programs", "at_once", "waves", "imbalance", "tail_ns"),
)
_ONE_CALL: Final = ["rank", "ordinal"]


@metric()
def kernels(summary: Summary) -> Table:
    """Kernels by how much longer they make a call, the most first; BETWEEN is no kernel, but what
    lies between the launches of a call.

    Columns: kernel, launches (per rank and call), path_ns (per rank and call: the time of its
    launches in which no earlier one runs), share (of the length of a call), median_ns (of a
    launch). Of its median launch: programs (blocks), at_once (most of them that ran at a time),
    waves (programs / at_once), imbalance (longest / mean program), tail_ns (at its end, with fewer
    than half of at_once running). Without a warm-up. Uses the ranks' own clocks, so it needs no
    alignment.
    """
    steady = steady_part(summary)[0]
    found = launches_of_calls(steady).sort_values([*_ONE_CALL, "first_ns", "last_ns"])
    if found.empty:
        return pd.DataFrame(columns=_COLUMNS)
    calls = found.groupby(_ONE_CALL, sort=False)
    busy_until = calls["last_ns"].cummax().groupby([found["rank"], found["ordinal"]]).shift()
    begin = busy_until.fillna(found["first_ns"]).astype("int64")
    found["path_ns"] = (found["last_ns"] - begin.clip(lower=found["first_ns"])).clip(lower=0)
    found["gap_ns"] = (found["first_ns"] - begin).clip(lower=0)
    found["length_ns"] = found["last_ns"] - found["first_ns"]
    rows = [_row(str(kernel), own, calls.ngroups) for kernel, own in found.groupby("kernel")]
    rows.append({"kernel": BETWEEN, "path_ns": found["gap_ns"].sum() / calls.ngroups})
    table = pd.DataFrame(rows).sort_values("path_ns", ascending=False, kind="stable")
    table.insert(3, "share", table["path_ns"] / max(1.0, table["path_ns"].sum()))
    shapes = [_shape(steady, each) for each in table["median_launch"]]
    table = table.join(pd.DataFrame(shapes, index=table.index))
    return table.reset_index(drop=True)[list(_COLUMNS)].fillna(0)


def _row(kernel: str, own: Table, num_calls: int) -> dict[str, object]:
    """What the launches of a kernel say, and the one of median length (the shorter of two)."""
    middle = own.sort_values(["length_ns", "rank", "launch"]).iloc[(len(own) - 1) // 2]
    return {
        "kernel": kernel,
        "launches": len(own) / num_calls,
        "path_ns": own["path_ns"].sum() / num_calls,
        "median_ns": int(middle["length_ns"]),
        "median_launch": (int(middle["rank"]), int(middle["launch"])),
    }


def _shape(summary: Summary, launch: tuple[int, int] | float) -> dict[str, float]:
    """How the programs of a launch fill the GPU."""
    if not isinstance(launch, tuple):
        return {}
    rank, number = launch
    spans = summary.frame(
        f"""SELECT min(first_ns) AS first_ns, max(last_ns) AS last_ns FROM tracks
            WHERE rank = {rank} AND launch = {number} GROUP BY block"""
    )
    begins, ends = (spans[name].to_numpy() for name in ("first_ns", "last_ns"))
    times, at_work = running(begins, ends)
    # Programs of no length never run beside each other, and have no tail.
    at_once = max(1, int(at_work.max()))
    # The last moment with half of them lasts until the next end.
    thin = times[np.flatnonzero(2 * at_work >= at_once).max(initial=-2) + 1]
    lengths = ends - begins
    return {
        "programs": len(spans),
        "at_once": at_once,
        "waves": len(spans) / at_once,
        "imbalance": float(lengths.max() / max(1.0, lengths.mean())),
        "tail_ns": int(times[-1] - thin),
    }
