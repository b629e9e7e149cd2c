"""First calls that are slower than the others: allocations, page faults, caches. They say little about the
kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kprof.analysis.balance import efficiency
from kprof.analysis.memo import memo
from kprof.analysis.metric import metric
from kprof.analysis.rules.finding import Finding, Severity
from kprof.analysis.skew import launch_starts
from kprof.analysis.wording import duration, ratio
from kprof.errors import ClockError

if TYPE_CHECKING:
    import pandas as pd

    from kprof.analysis.summary import Summary

_MIN_CALLS: Final = 3
_MIN_RATIO: Final = 1.5
# The rest of a trace is summarised anew: in large captures that costs more than a warm-up among many calls matters.
_MAX_EVENTS: Final = 20_000_000


def steady_part(summary: Summary) -> tuple[Summary, list[Finding]]:
    """The run without its first call where that took 1.5 times the median of at least two others, and a note
    of it.

    A call is all launches of one ordinal. Selections of launches made by the user are left as they are.
    """
    found = _without_warm_up(summary)
    return (summary, []) if found is None else (found[0], [found[1]])


@memo
def _without_warm_up(summary: Summary) -> tuple[Summary, Finding] | None:
    recorded = sum(info.counts.recorded for info in summary.trace.ranks)
    if recorded > _MAX_EVENTS:
        return None
    first = _slow_first_call(summary)
    if first is None or summary.trace.selection.launches is not None:
        return None
    ordinal, times, first_ns = first
    starts = launch_starts(summary)
    kept = sorted(set(starts.loc[starts["ordinal"] != ordinal, "launch"].tolist()))
    dropped = set(starts.loc[starts["ordinal"] == ordinal, "launch"].tolist())
    if dropped & set(kept):
        return None
    note = Finding(
        id="warm-up",
        kind="warm_up",
        severity=Severity.NOTE,
        sentence=f"call {ordinal} took {ratio(times)} the median call ({duration(first_ns)}): a warm-up, "
        "left out of the other findings and of the efficiency",
        remedy="run one call before recording; tables, matrix and pictures of launches hold every call",
        evidence={"ordinal": ordinal, "ratio": times, "call_ns": first_ns},
    )
    return summary.select(launches=tuple(kept)), note


@metric(name="efficiency", one_clock="the efficiency of the run")
def steady_efficiency(summary: Summary) -> pd.DataFrame:
    """The efficiency of the run without a warm-up."""
    return efficiency(steady_part(summary)[0])


def _slow_first_call(summary: Summary) -> tuple[int, float, float] | None:
    """Ordinal, length over the median of the other calls, and length; on unaligned clocks the longest
    rank's."""
    starts = launch_starts(summary)
    if starts["ordinal"].nunique() < _MIN_CALLS:
        return None
    try:
        summary.trace.require_alignment("the length of a call")
        groups = starts.groupby("ordinal")
        lengths = groups["last_ns"].max() - groups["first_ns"].min()
    except ClockError:
        per_rank = starts.groupby(["ordinal", "rank"])
        lengths = (per_rank["last_ns"].max() - per_rank["first_ns"].min()).groupby("ordinal").max()
    lengths = lengths.sort_index()
    usual = float(lengths.iloc[1:].median())
    times = float(lengths.iloc[0]) / usual if usual else 0.0
    return (int(lengths.index[0]), times, float(lengths.iloc[0])) if times >= _MIN_RATIO else None
