"""The first calls of a kernel, if they are slower than the others, and the run without them.

Allocations, page faults, loading and compilation make them slow: they say little about the kernel.
Every kernel has its own first call: one that is launched later in a run warms up later.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kprof.analysis.balance import efficiency
from kprof.analysis.calls import call_lengths, launches_of_calls
from kprof.analysis.metric import memo, metric
from kprof.analysis.summary import Column, Summary, Table

# The rest of the trace must be summarised again. In large captures that takes long, and among many
# calls a warm-up matters little.
_MAX_EVENTS: Final = 20_000_000
_WARM_UP_RATIO: Final = 1.5
_STILL_WARMING: Final = 1.25
_MOST_WARM_UP: Final = 2
_MIN_CALLS: Final = 3


def steady_part(summary: Summary) -> tuple[Summary, tuple[int, ...]]:
    """The run without the first one or two calls of a kernel, if they took much longer than its
    others, and their ordinals.

    If the user selected launches, they are left as they are.
    """
    found = _without_warm_up(summary)
    return (summary, ()) if found is None else found


@metric(name="efficiency", one_clock="the efficiency of the run")
def steady_efficiency(summary: Summary) -> Table:
    """The efficiency of the run without a warm-up."""
    return efficiency(steady_part(summary)[0])


@memo
def _without_warm_up(summary: Summary) -> tuple[Summary, tuple[int, ...]] | None:
    recorded = sum(info.counts.recorded for info in summary.trace.ranks)
    if recorded > _MAX_EVENTS or summary.trace.selection.launches is not None:
        return None
    starts = launches_of_calls(summary)
    slow = warm_up_of(starts, call_lengths(summary))
    is_slow = starts["ordinal"].isin(slow)
    dropped, kept = (set(starts.loc[which, "launch"].tolist()) for which in (is_slow, ~is_slow))
    if not slow or dropped & kept:
        return None
    return summary.select(launches=tuple(sorted(kept))), slow


def warm_up_of(launches: Table, lengths: Column, *, is_selection: bool = False) -> tuple[int, ...]:
    """The calls in which a kernel warms up, in their order.

    `launches` has the columns kernel, ordinal (the call's number) and of_kernel (how many launches
    of its kernel came before); `lengths` has the length of every call by its number. In a
    selection, a kernel whose first launch is not selected has warmed up before.
    """
    found: set[int] = set()
    for _, own in launches.groupby("kernel"):
        if is_selection and own["of_kernel"].min() > 0:
            continue
        calls = sorted({int(call) for call in own["ordinal"].tolist()})
        found.update(calls[: _slow_at_first(lengths.loc[calls].to_numpy(dtype=float))])
    return tuple(sorted(found))


def _slow_at_first(lengths: np.ndarray) -> int:
    """How many calls at the beginning took much longer than the median of those after them, and
    than each of them: what comes again is no warm-up."""
    if len(lengths) < _MIN_CALLS or lengths[0] < _WARM_UP_RATIO * np.median(lengths[1:]):
        return 0
    count = 1
    while count < min(_MOST_WARM_UP, len(lengths) - 2) and lengths[
        count
    ] >= _STILL_WARMING * np.median(lengths[count + 1 :]):
        count += 1
    return count if lengths[0] > _STILL_WARMING * lengths[count:].max() else 0
