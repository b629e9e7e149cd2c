"""Formats numbers and names for sentences."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

# From this length on, the rule of a series tells more than its members.
_MIN_REGULAR: Final = 5
_UNITS: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


def duration(ns: float) -> str:
    """48.2 us, 3.1 ms, 120 ns: three significant digits."""
    for size, unit in _UNITS:
        # What would round to 1000 of a unit is written as 1.00 of the next.
        if abs(ns) >= 0.9995 * size:
            return f"{_digits(ns / size)} {unit}"
    return f"{round(ns)} ns"


def difference(ns: float, bound_ns: float) -> str:
    """A difference between two clocks. Below their error bound, only the bound is known."""
    is_below = bound_ns > 0 and abs(ns) <= bound_ns
    return f"<= {duration(bound_ns)}" if is_below else duration(ns)


def percent(share: float) -> str:
    """61 %; 0.4 % if whole percents would hide it; < 0.1 % if that would, too."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    return f"{100 * share:.0f} %" if abs(share) >= 0.0095 or share == 0 else f"{100 * share:.1f} %"


def signed_percent(share: float) -> str:
    """+114 %, -53 %; what grew to ten times and more reads better as 98.6x."""
    if share >= 9:
        return ratio(1 + share)
    return f"{'+' if share > 0 else '-'}{percent(abs(share))}"


def ratio(value: float) -> str:
    """3.0x; below 1 two digits, 0.75x."""
    return f"{value:.1f}x" if value >= 0.995 else f"{value:.2g}x"


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if not parts:
        return ""
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last


def counted(number: int, one: str, many: str) -> str:
    """1 launch, 2,048 launches"""
    return f"{number:,} {one if number == 1 else many}"


def members(kind: str, numbers: Iterable[int], at_most: int = 12) -> str:
    """`rank 3`, `ranks 0-2, 4-7`, `blocks 3, 7, 11 ... 131`.

    Other long lists end in a count of the rest.
    """
    ordered = sorted(set(numbers))
    if len(ordered) == 1:
        return f"{kind} {ordered[0]}"
    if len(ordered) >= _MIN_REGULAR and _step(ordered) > 1:
        return f"{kind}s {', '.join(map(str, ordered[:3]))} ... {ordered[-1]}"
    runs = _runs(ordered)
    shown = ", ".join(runs[:at_most])
    left = len(runs) - at_most
    return f"{kind}s {shown}" + (f" and {left} more" if left > 0 else "")


def _step(ordered: list[int]) -> int:
    """The distance between neighbours if it is constant, as for the blocks of one source, else
    0."""
    steps = {after - before for before, after in itertools.pairwise(ordered)}
    return steps.pop() if len(steps) == 1 else 0


def _runs(ordered: list[int]) -> list[str]:
    """Replace runs of three or more consecutive numbers by ranges."""
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts: list[str] = []
    for run in runs:
        texts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(number) for number in run]
    return texts


def _digits(value: float) -> str:
    # Only seconds can exceed 999, and they are written in full.
    return f"{value:.0f}" if abs(value) >= 999.5 else f"{value:#.3g}".rstrip(".")
