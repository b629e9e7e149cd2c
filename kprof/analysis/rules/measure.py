"""Costs that several rules need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kprof.analysis.balance import efficiency, rank_efficiency
from kprof.analysis.rules.outliers import medians_of_others
from kprof.analysis.waiting import blame_matrix

if TYPE_CHECKING:
    import pandas as pd

    from kprof.trace import Trace


def run_time_ns(trace: Trace) -> float:
    """The time with a launch running; without one clock, the longest such time of a rank."""
    if trace.alignment is not None or len(trace.manifest.ranks) < 2:
        table = efficiency(trace)
    else:
        table = rank_efficiency(trace)
    return float(table["window_ns"].max()) if len(table) else 0.0


def waits_per_track(trace: Trace) -> pd.Series:
    """For each rank waited for: the wait of the other ranks for it, per track of theirs, in ns."""
    import numpy as np
    import pandas as pd

    matrix = blame_matrix(trace)
    tracks = trace.frame(
        "SELECT rank, count(DISTINCT (block, warp)) AS tracks FROM tracks GROUP BY rank"
    )
    per_rank = tracks.set_index("rank")["tracks"].reindex(matrix.index, fill_value=0)
    foreign = matrix.to_numpy(dtype=float, copy=True)
    is_own = matrix.index.to_numpy()[:, None] == matrix.columns.to_numpy()[None, :]
    foreign[is_own] = 0.0
    waiting = np.where(is_own, 0, per_rank.to_numpy()[:, None]).sum(axis=0)
    return pd.Series(foreign.sum(axis=0) / np.maximum(waiting, 1), index=matrix.columns)


def excess_wait_for(trace: Trace, peer: int) -> float:
    """The part of `waits_per_track` of one peer that is beyond the median of the other peers."""
    waits = waits_per_track(trace)
    if peer not in waits.index or len(waits) < 2:
        return 0.0
    usual = medians_of_others(waits.to_numpy())[list(waits.index).index(peer)]
    return max(0.0, float(waits[peer] - usual))
