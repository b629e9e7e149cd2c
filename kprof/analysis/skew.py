"""Did all ranks start a launch together? Start skew is not slowness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kprof.analysis.once import once_per_trace
from kprof.analysis.summary import summarise

if TYPE_CHECKING:
    import pandas as pd

    from kprof.trace import Trace


def launch_skew(trace: Trace) -> pd.DataFrame:
    """Latest minus earliest first event of the ranks, per launch.

    Columns: kernel, ordinal, ranks, first_ns, skew_ns, last_rank, bound_ns (clock error between the two ranks
    concerned; a skew below it is only known to be "<= bound"), duration_ns (of the launch over all ranks).
    Raises ClockError.
    """
    trace.require_alignment("launch skew")
    frame = launch_starts(trace)
    groups = frame.groupby(["kernel", "ordinal"], sort=False)
    table = groups.agg(
        ranks=("rank", "size"), first_ns=("first_ns", "min"), last_start_ns=("first_ns", "max")
    )
    table["skew_ns"] = table["last_start_ns"] - table["first_ns"]
    table["last_rank"] = frame.loc[groups["first_ns"].idxmax(), "rank"].to_numpy()
    first_rank = frame.loc[groups["first_ns"].idxmin(), "rank"].to_numpy()
    table["bound_ns"] = [
        bound_ns(trace, int(a), int(b)) for a, b in zip(first_rank, table["last_rank"], strict=True)
    ]
    table["duration_ns"] = groups["last_ns"].max() - table["first_ns"]
    return table.drop(columns="last_start_ns").reset_index()


@once_per_trace
def launch_starts(trace: Trace) -> pd.DataFrame:
    """First and last event of every rank in every launch: kernel, ordinal, rank, launch, first_ns, last_ns,
    ..."""
    summarise(trace)
    return trace.frame("SELECT * FROM spans_of_launches ORDER BY ordinal, kernel, rank")


def bound_ns(trace: Trace, a: int, b: int) -> float:
    """The clock error bound between two ranks; 0 where nothing was aligned."""
    return trace.alignment.bound_between_ns(a, b) if trace.alignment else 0.0
