"""Calls: the launches that belong together, over all kernels and ranks, and how they start.

A call launches the same kernels each time. If each kernel is launched once per call, the n-th
launch of every kernel belongs to call n. If one is launched several times per call, as in repeated
`gemm, gemm, all_reduce`, the order of launches is periodic, and a period is a call. Launches before
the first whole period belong to the first call, or are one if they are many. Where kernels run one
after another, each many times, every launch is a call.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kprof.analysis.metric import memo, metric
from kprof.analysis.summary import Column, Summary, Table
from kprof.trace import Trace


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


@memo
def _table(summary: Summary) -> Table:
    groups = launches_of_calls(summary).groupby("ordinal")
    first_ns, last_ns = groups["first_ns"].min(), groups["last_ns"].max()
    table = {"first_ns": first_ns, "last_ns": last_ns, "launches": groups["launch"].nunique()}
    return pd.DataFrame(table | {"length_ns": last_ns - first_ns}).reset_index()


@memo
def launches_of_calls(summary: Summary) -> Table:
    """`launch_starts`, with the call's number as `ordinal`, and the launch's among those of its
    kernel as `of_kernel`."""
    starts, numbers = launch_starts(summary), call_numbers(summary)
    starts = starts.assign(of_kernel=starts["ordinal"])
    if numbers is None:
        return starts
    known = starts.merge(numbers, on=["rank", "launch"], how="left")
    return known.assign(ordinal=known["call"].fillna(known["ordinal"]).astype("int64"))


@memo
def call_lengths(summary: Summary) -> Column:
    """The length of every call, by its number. On unaligned clocks, that of the slowest rank."""
    keys = ["ordinal"] if summary.trace.is_on_one_clock else ["ordinal", "rank"]
    groups = launches_of_calls(summary).groupby(keys)
    return (groups["last_ns"].max() - groups["first_ns"].min()).groupby("ordinal").max()


@memo
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


Ints = NDArray[np.int64]

# The longest period that is searched for. So many launches may come before the first whole one, or
# as many as that has.
_LONGEST_PERIOD: Final = 256
_LONGEST_START: Final = 8
_LEAST_REPEATS: Final = 2
# Launches of one call may be interleaved with those of as many others.
_FAR: Final = 4
# A call but the first has at most so many times as many collectives as they have in the mean.
_MOST_OF_USUAL: Final = 4


@memo
def call_numbers(summary: Summary) -> Table | None:
    """Columns rank, launch, call. None if calls are simply the launches of one ordinal."""
    starts = launch_starts(summary)
    is_collective = of_nccl(summary, starts)
    collectives, others = starts[is_collective], starts[~is_collective]
    if collectives.empty or others.empty:
        return _by_order(summary.trace)
    numbers = _by_order(summary.trace, frozenset(others["kernel"]))
    if numbers is None:
        numbers = others.rename(columns={"ordinal": "call"})[["rank", "launch", "call"]]
    placed = _placed(collectives, others.merge(numbers, on=["rank", "launch"]))
    calls = np.unique(numbers["call"])[1:]
    num_in = placed["call"].value_counts().reindex(calls, fill_value=0)
    if num_in.max() > _MOST_OF_USUAL * num_in.mean():
        # What else was recorded does not tell of calls.
        return _by_order(summary.trace)
    return pd.concat([numbers, placed[["rank", "launch", "call"]]], ignore_index=True)


def of_nccl(summary: Summary, starts: Table) -> NDArray[np.bool_]:
    """Which of these launches are collectives of NCCL."""
    found = summary.frame(
        "SELECT DISTINCT rank, launch FROM named_cells WHERE region LIKE 'nccl/%'"
    )
    keys = ["rank", "launch"]
    return pd.MultiIndex.from_frame(starts[keys]).isin(pd.MultiIndex.from_frame(found))


def _placed(collectives: Table, others: Table) -> Table:
    """Collectives with their calls: on all ranks that which the first rank has them in."""
    begins = others.groupby(["rank", "call"])["first_ns"].min().reset_index()
    placed = pd.merge_asof(
        collectives.sort_values("first_ns"), begins.sort_values("first_ns"), "first_ns", by="rank"
    )
    placed = placed.sort_values("rank", kind="stable")
    of_one = placed.dropna(subset="call").groupby(["kernel", "ordinal"])["call"].first()
    call = placed[["kernel", "ordinal"]].join(of_one, on=["kernel", "ordinal"])["call"]
    return placed.assign(call=call.fillna(begins["call"].min()).astype("int64"))


def _by_order(trace: Trace, of_kernels: frozenset[str] | None = None) -> Table | None:
    """The same from the numbers of the launches, of these kernels only."""
    columns = []
    order: list[str] | None = None
    has_gaps = any(info.counts.left_out_calls for info in trace.manifest.ranks)
    for info in trace.manifest.ranks:
        launches = sorted(info.launches, key=lambda launch: launch.launch)
        if of_kernels is not None:
            launches = [launch for launch in launches if launch.kernel in of_kernels]
        kernels = [launch.kernel for launch in launches]
        if order is not None and kernels != order and not has_gaps:
            return None
        order = kernels
        calls = _calls_of(kernels, [launch.ordinal for launch in launches], has_gaps=has_gaps)
        if calls is None:
            return None
        numbers = [launch.launch for launch in launches]
        columns.append(pd.DataFrame({"rank": info.rank, "launch": numbers, "call": calls}))
    return pd.concat(columns, ignore_index=True) if columns else None


def _calls_of(kernels: list[str], ordinals: list[int], *, has_gaps: bool = False) -> Ints | None:
    """The call of every launch, or None if no kernel is launched several times per call."""
    names, number = np.unique(np.array(kernels, dtype=object).astype(str), return_inverse=True)
    if len(names) < 2:
        return None
    start, period = _period_of(number)
    if period:
        in_call = np.bincount(number[start : start + period])
        if in_call.max() < 2:
            return None
        if has_gaps:
            return _by_ordinals(kernels, ordinals, start, period)
        # A first step of which launches are missing is a call of its own.
        is_apart = int(start >= _LONGEST_START)
        return np.maximum(0, (np.arange(len(number)) - start) // period + is_apart)
    return None if _are_neighbours(ordinals) else np.arange(len(number))


def _by_ordinals(kernels: list[str], ordinals: list[int], start: int, period: int) -> Ints:
    """The same where calls were left out: others than on other ranks, and ordinals count them."""
    in_call = Counter(kernels[start : start + period])
    first = {kernel: ordinals[kernels.index(kernel, start)] for kernel in in_call}
    calls = [
        (ordinal - first[kernel]) // in_call[kernel]
        for kernel, ordinal in zip(kernels[start:], ordinals[start:], strict=True)
    ]
    return np.array([0] * start + calls)


def _are_neighbours(ordinals: list[int]) -> bool:
    """Whether launches of one ordinal come close after each other, in most calls."""
    places = pd.Series(range(len(ordinals))).groupby(ordinals).agg(["min", "max", "size"])
    lengths = places["max"] - places["min"] + 1
    return bool((lengths / places["size"]).median() <= _FAR)


def _period_of(number: Ints) -> tuple[int, int]:
    """Where the first whole period of launches begins and how long it is; 0 if there is none.

    Of a first step some launches may be missing: torch.compile makes copies of kernels at their
    first launch. A period begins as the run does.
    """
    for period in range(1, min(_LONGEST_PERIOD, len(number) // _LEAST_REPEATS) + 1):
        others = np.flatnonzero(number[period:] != number[:-period])
        start = int(others[-1]) + 1 if len(others) else 0
        if len(number) - start >= max(_LEAST_REPEATS * period, start):
            # A longer one only repeats it.
            if start >= max(_LONGEST_START, period + 1):
                break
            return start and _like_the_first(number, start, period), period
    return 0, 0


def _like_the_first(number: Ints, start: int, period: int) -> int:
    """The first launch from `start` on, within a period, that most launches follow as they follow
    the first one of the run."""
    windows = [number[i : i + period] for i in range(start, start + period)]
    first = number[:period]
    same = [int(np.argmin(np.r_[window == first[: len(window)], False])) for window in windows]
    return start + int(np.argmax(same))
