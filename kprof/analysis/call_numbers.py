"""Assigns launches to calls.

A call launches the same kernels each time. If each kernel is launched once per call, the n-th
launch of every kernel belongs to call n. If one is launched several times per call, as in repeated
`gemm, gemm, all_reduce`, the order of launches is periodic, and a period is a call. Launches before
the first whole period belong to the first call. Where kernels run one after another, each many
times, every launch is a call.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kprof.analysis.summary import Table
from kprof.trace import Trace

Ints = NDArray[np.int64]

# The longest period that is searched for, and the longest prefix that is launched once.
_LONGEST_PERIOD: Final = 256
_LONGEST_START: Final = 8
_LEAST_REPEATS: Final = 2
# Launches of one call may be interleaved with those of as many others.
_FAR: Final = 4


def call_numbers(trace: Trace) -> Table | None:
    """Columns rank, launch, call. None if calls are simply the launches of one ordinal."""
    parts = []
    order: list[str] | None = None
    ordinals: list[int] = []
    for info in trace.manifest.ranks:
        launches = sorted(info.launches, key=lambda launch: launch.launch)
        kernels = [launch.kernel for launch in launches]
        if order is not None and kernels != order:
            return None
        order, ordinals = kernels, [launch.ordinal for launch in launches]
        parts.append((info.rank, [launch.launch for launch in launches]))
    calls = _calls_of(order or [], ordinals)
    if calls is None:
        return None
    columns = [
        pd.DataFrame({"rank": rank, "launch": numbers, "call": calls}) for rank, numbers in parts
    ]
    return pd.concat(columns, ignore_index=True)


def _calls_of(kernels: list[str], ordinals: list[int]) -> Ints | None:
    """The call of every launch, or None if no kernel is launched several times per call."""
    names, number = np.unique(np.array(kernels, dtype=object).astype(str), return_inverse=True)
    if len(names) < 2:
        return None
    for start in range(min(_LONGEST_START, len(number))):
        period = _period_of(number[start:])
        if period:
            in_call = np.bincount(number[start : start + period])
            if in_call.max() < 2:
                return None
            calls: Ints = np.maximum(0, np.arange(len(number)) - start) // period
            return calls
    return None if _are_neighbours(ordinals) else np.arange(len(number))


def _are_neighbours(ordinals: list[int]) -> bool:
    """Whether launches of one ordinal come close after each other, in most calls."""
    places = pd.Series(range(len(ordinals))).groupby(ordinals).agg(["min", "max", "size"])
    lengths = places["max"] - places["min"] + 1
    return bool((lengths / places["size"]).median() <= _FAR)


def _period_of(number: Ints) -> int:
    """The period in launches that holds throughout the run, or 0."""
    for period in range(1, min(_LONGEST_PERIOD, len(number) // _LEAST_REPEATS) + 1):
        if (number[period:] == number[:-period]).all():
            return period
    return 0
