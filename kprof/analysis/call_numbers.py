"""Which call a launch is part of.

A call launches the same kernels each time. Where each is launched once a call, the n-th launch of
every kernel is of call n. Where one is launched several times a call, as in `gemm, gemm,
all_reduce` again and again, the order of launches repeats with a period, and a period is a call.
Launches before the first whole period belong to the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

    from kprof.trace import Trace

Ints = NDArray[np.int64]

# Longer periods are not looked for, nor longer beginnings that are launched once.
_LONGEST_PERIOD: Final = 256
_LONGEST_START: Final = 8
_LEAST_REPEATS: Final = 2


def call_numbers(trace: Trace) -> pd.DataFrame | None:
    """Columns rank, launch, call; None where a call is all launches of one ordinal."""
    import pandas as pd

    parts = []
    order: list[str] | None = None
    for info in trace.manifest.ranks:
        launches = sorted(info.launches, key=lambda launch: launch.launch)
        kernels = [launch.kernel for launch in launches]
        if order is not None and kernels != order:
            return None
        order = kernels
        parts.append((info.rank, [launch.launch for launch in launches]))
    calls = _calls_of(order or [])
    if calls is None:
        return None
    columns = [
        pd.DataFrame({"rank": rank, "launch": numbers, "call": calls}) for rank, numbers in parts
    ]
    return pd.concat(columns, ignore_index=True)


def _calls_of(kernels: list[str]) -> Ints | None:
    """The call of every launch, or None where no kernel is launched several times a call."""
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
    return None


def _period_of(number: Ints) -> int:
    """After how many launches the same ones come again, all over the run; 0 where they do not."""
    for period in range(1, min(_LONGEST_PERIOD, len(number) // _LEAST_REPEATS) + 1):
        if (number[period:] == number[:-period]).all():
            return period
    return 0
