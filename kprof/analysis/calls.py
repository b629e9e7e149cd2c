"""Calls: the launches that belong together, over all kernels and ranks (`call_numbers.py`).

Most analyses look at single calls.
"""

from __future__ import annotations

from dataclasses import dataclass

from kprof.analysis.call_numbers import call_numbers
from kprof.analysis.metric import metric
from kprof.analysis.skew import launch_starts
from kprof.analysis.summary import Column, Summary, Table


@dataclass(frozen=True)
class Call:
    """One call: [start_ns, end_ns] over all ranks, its launch numbers, and a readable name."""

    ordinal: int
    start_ns: int
    end_ns: int
    launches: tuple[int, ...]
    name: str


@metric(one_clock="the length of a call")
def calls(summary: Summary) -> Table:
    """Every call, by ordinal: ordinal (its number), first_ns, last_ns, launches (per rank),
    length_ns.

    Raises ClockError on unaligned clocks.
    """
    return _table(summary)


def _table(summary: Summary) -> Table:
    table = (
        launches_of_calls(summary)
        .groupby("ordinal")
        .agg(
            first_ns=("first_ns", "min"), last_ns=("last_ns", "max"), launches=("launch", "nunique")
        )
    )
    table["length_ns"] = table["last_ns"] - table["first_ns"]
    return table.reset_index()


def launches_of_calls(summary: Summary) -> Table:
    """`launch_starts`, with the call's number as `ordinal`, and the launch's among those of its
    kernel as `of_kernel`."""
    starts, numbers = launch_starts(summary), call_numbers(summary.trace)
    starts = starts.assign(of_kernel=starts["ordinal"])
    if numbers is None:
        return starts
    known = starts.merge(numbers, on=["rank", "launch"], how="left")
    return known.assign(ordinal=known["call"].fillna(known["ordinal"]).astype("int64"))


def call_lengths(summary: Summary) -> Column:
    """The length of every call, by its number. On unaligned clocks, that of the slowest rank."""
    keys = ["ordinal"] if summary.trace.is_on_one_clock else ["ordinal", "rank"]
    groups = launches_of_calls(summary).groupby(keys)
    return (groups["last_ns"].max() - groups["first_ns"].min()).groupby("ordinal").max()


def typical_call(summary: Summary) -> Call | None:
    """The call of median length (the shorter of two). None without events.

    The first call is often a warm-up and the longest one an outlier, so neither represents the
    kernel.
    """
    table = _table(summary)
    if table.empty:
        return None
    position = (len(table) - 1) // 2
    row = table.sort_values(["length_ns", "ordinal"]).to_dict("records")[position]
    starts = launches_of_calls(summary)
    launches = starts.loc[starts["ordinal"] == row["ordinal"], "launch"]
    name = (
        "the run"
        if len(table) == 1
        else f"call {row['ordinal']} (of {len(table)}, the one of median length)"
    )
    return Call(
        int(row["ordinal"]),
        int(row["first_ns"]),
        int(row["last_ns"]),
        tuple(sorted({int(launch) for launch in launches.tolist()})),
        name,
    )
