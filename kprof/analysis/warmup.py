"""The run without the first calls of its kernels, where those are slower than the others.

Allocations, page faults and compilation make them so; they say little about the kernel.
"""

from __future__ import annotations

from typing import Final

from kprof.analysis.balance import efficiency
from kprof.analysis.calls import call_lengths, launches_of_calls
from kprof.analysis.first_calls import warm_up_of
from kprof.analysis.memo import memo
from kprof.analysis.metric import metric
from kprof.analysis.summary import Summary, Table

# The rest of the trace must be summarised again. In large captures that takes long, and among many
# calls a warm-up matters little.
_MAX_EVENTS: Final = 20_000_000


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
