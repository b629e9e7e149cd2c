"""In which calls something is: always, sometimes, every n-th call, growing, moving."""

from __future__ import annotations

from enum import Enum

import numpy as np

from kprof.analysis.findings.thresholds import (
    CALLS_THAT_GROW,
    GROWTH_CORRELATION,
    NEARLY_ALL_CALLS,
    STEP_OF_SIZES,
)
from kprof.analysis.replay.spans import Bools, Floats


class When(str, Enum):
    """In which calls a finding is."""

    ONCE = "once"  # only one call was replayed: nobody can say whether it comes again
    ALWAYS = "always"
    SOMETIMES = "sometimes"
    PERIODIC = "periodic"
    GROWING = "growing"
    MOVING = "moving"


def when_of(
    calls: Bools, costly: Bools, excess: Floats, gains: Floats, is_moving: bool
) -> tuple[When, int]:
    """When something is, and n where it is every n-th call (else 0).

    Of every call: whether it has it, whether it would get shorter, by how much more than usual it
    takes there (a logarithm), and its gain.
    """
    count = len(costly)
    if count == 1:
        return When.ONCE, 0
    if is_moving:
        return When.MOVING, 0
    third = max(1, count // 3)
    is_up = gains[-third:].mean() > 2 * max(0.0, gains[:third].mean())
    if is_up and grows(excess) and grows(gains):
        return When.GROWING, 0
    if costly.sum() >= NEARLY_ALL_CALLS * count:
        return When.ALWAYS, 0
    period = _period_of(costly) or _period_of(calls)
    return (When.PERIODIC, period) if period else (When.SOMETIMES, 0)


def grows(by_call: Floats) -> bool:
    """Whether the values rise with the numbers of their calls, by many steps: calls of two or three
    sizes may be in the order of their sizes."""
    if len(by_call) < CALLS_THAT_GROW or by_call.std() == 0:
        return False
    if np.diff(np.sort(by_call)).max() > STEP_OF_SIZES * np.ptp(by_call):
        return False
    numbers = np.arange(len(by_call))
    return bool(np.corrcoef(numbers, by_call)[0, 1] > GROWTH_CORRELATION)


def _period_of(mask: Bools) -> int:
    """n where it is every n-th call from one of the first n on, three times and more; else 0."""
    calls = np.flatnonzero(mask)
    if len(calls) < 3:
        return 0
    first, period = int(calls[0]), int(calls[1] - calls[0])
    may_be = period > 1 and first < period <= len(mask) // 3
    return period if may_be and np.array_equal(calls, np.arange(first, len(mask), period)) else 0
