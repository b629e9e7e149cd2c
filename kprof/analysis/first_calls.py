"""First calls that took much longer than later ones: a kernel is loaded or compiled then.

Every kernel has its own first call: one that is launched later in a run warms up later.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kprof.analysis.summary import Column, Table

_WARM_UP_RATIO: Final = 1.5
_STILL_WARMING: Final = 1.25
_MOST_WARM_UP: Final = 2
_MIN_CALLS: Final = 3


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
