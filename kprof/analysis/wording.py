"""Numbers and names as they read in a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_UNITS: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


def duration(ns: float) -> str:
    """48.2 us, 3.1 ms, 120 ns: three significant digits."""
    for size, unit in _UNITS:
        if abs(ns) >= size:
            return f"{_digits(ns / size)} {unit}"
    return f"{ns:.0f} ns"


def difference(ns: float, bound_ns: float) -> str:
    """A difference between two clocks: one below their error bound is only known to be within it."""
    is_below = bound_ns > 0 and abs(ns) <= bound_ns
    return f"<= {duration(bound_ns)}" if is_below else duration(ns)


def percent(share: float) -> str:
    """61 %, and 0.4 % where whole percents would hide it."""
    return f"{100 * share:.0f} %" if abs(share) >= 0.0095 or share == 0 else f"{100 * share:.1f} %"


def ratio(value: float) -> str:
    """3.0x"""
    return f"{value:.1f}x"


def counted(number: int, one: str, many: str) -> str:
    """1 launch, 2 launches"""
    return f"{number} {one if number == 1 else many}"


def members(kind: str, numbers: Iterable[int], at_most: int = 12) -> str:
    """`rank 3`, `ranks 0-2, 4-7`, `blocks 3, 11, 19`; long lists end in a count of what was left off."""
    ordered = sorted(set(numbers))
    if len(ordered) == 1:
        return f"{kind} {ordered[0]}"
    runs = _runs(ordered)
    shown = ", ".join(runs[:at_most])
    left = len(runs) - at_most
    return f"{kind}s {shown}" + (f" and {left} more" if left > 0 else "")


def _runs(ordered: list[int]) -> list[str]:
    """Runs of three or more consecutive numbers become ranges."""
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
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
