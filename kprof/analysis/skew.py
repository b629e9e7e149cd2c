"""Start skew: whether all ranks start a launch together."""

from __future__ import annotations

from kprof.analysis.memo import memo
from kprof.analysis.metric import metric
from kprof.analysis.summary import Summary, Table


@metric(one_clock="launch skew")
def launch_skew(summary: Summary) -> Table:
    """The ranks' latest minus earliest first event, per launch.

    Columns: kernel, ordinal, ranks, first_ns, skew_ns, last_rank, bound_ns (clock error between the
    two ranks concerned; a skew below it is only known to be "<= bound"), duration_ns (of the launch
    over all ranks). Raises ClockError.
    """
    frame = launch_starts(summary)
    groups = frame.groupby(["kernel", "ordinal"], sort=False)
    table = groups.agg(
        ranks=("rank", "size"), first_ns=("first_ns", "min"), last_start_ns=("first_ns", "max")
    )
    table["skew_ns"] = table["last_start_ns"] - table["first_ns"]
    table["last_rank"] = frame.loc[groups["first_ns"].idxmax(), "rank"].to_numpy()
    first_rank = frame.loc[groups["first_ns"].idxmin(), "rank"].to_numpy()
    table["bound_ns"] = [
        bound_ns(summary, int(a), int(b))
        for a, b in zip(first_rank, table["last_rank"], strict=True)
    ]
    table["duration_ns"] = groups["last_ns"].max() - table["first_ns"]
    return table.drop(columns="last_start_ns").reset_index()


@memo
def launch_starts(summary: Summary) -> Table:
    """The first and last event of every rank in every launch: kernel, ordinal, rank, launch,
    first_ns, last_ns, ..."""
    return summary.frame("SELECT * FROM spans_of_launches ORDER BY ordinal, kernel, rank, launch")


def bound_ns(summary: Summary, a: int, b: int) -> float:
    """The clock error bound between two ranks. 0 if clocks are unaligned."""
    return summary.trace.alignment.bound_between_ns(a, b) if summary.trace.alignment else 0.0
