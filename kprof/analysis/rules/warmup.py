"""First calls that are slower than the others: allocations, page faults, caches. They say little about the
kernel."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from kprof.analysis.rules.finding import Finding, Severity
from kprof.analysis.skew import launch_starts
from kprof.analysis.wording import duration, ratio
from kprof.errors import ClockError

if TYPE_CHECKING:
    from kprof.trace import Trace

_MIN_CALLS: Final = 3
_MIN_RATIO: Final = 1.5
# The rest of a trace is summarised anew: in large captures that costs more than a warm-up among many calls matters.
_MAX_EVENTS: Final = 20_000_000
# What is left of a trace is summarised by whoever asks first, and holds nothing of the whole trace.
_KNOWN: weakref.WeakKeyDictionary[Trace, tuple[Trace, Finding]] = weakref.WeakKeyDictionary()


def steady_part(trace: Trace) -> tuple[Trace, list[Finding]]:
    """The trace without its first call where that took 1.5 times the median of at least two others, and a note
    of it.

    A call is all launches of one ordinal. Selections of launches made by the user are left as they are.
    """
    if trace not in _KNOWN:
        found = _without_warm_up(trace)
        if found is None:
            return trace, []
        _KNOWN[trace] = found
    steady, note = _KNOWN[trace]
    return steady, [note]


def _without_warm_up(trace: Trace) -> tuple[Trace, Finding] | None:
    recorded = sum(info.counts.recorded for info in trace.ranks)
    if recorded > _MAX_EVENTS:
        return None
    first = _slow_first_call(trace)
    if first is None or trace.selection.launches is not None:
        return None
    ordinal, times, first_ns = first
    starts = launch_starts(trace)
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
    return trace.select(launches=tuple(kept)), note


def _slow_first_call(trace: Trace) -> tuple[int, float, float] | None:
    """Ordinal, length over the median of the other calls, and length; on unaligned clocks the longest
    rank's."""
    starts = launch_starts(trace)
    if starts["ordinal"].nunique() < _MIN_CALLS:
        return None
    try:
        trace.require_alignment("the length of a call")
        groups = starts.groupby("ordinal")
        lengths = groups["last_ns"].max() - groups["first_ns"].min()
    except ClockError:
        per_rank = starts.groupby(["ordinal", "rank"])
        lengths = (per_rank["last_ns"].max() - per_rank["first_ns"].min()).groupby("ordinal").max()
    lengths = lengths.sort_index()
    usual = float(lengths.iloc[1:].median())
    times = float(lengths.iloc[0]) / usual if usual else 0.0
    return (int(lengths.index[0]), times, float(lengths.iloc[0])) if times >= _MIN_RATIO else None
