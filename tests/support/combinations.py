"""Few of all combinations of what a test is tried with."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def all_pairs(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Combinations in which any two values of any two axes meet, in a fixed order. For tests of axes that have
    little to do with each other: where three values have to meet to show a fault, all combinations are needed."""
    numbers = list(itertools.product(*(range(len(axis)) for axis in axes)))
    missing = {pair for chosen in numbers for pair in _pairs_in(chosen)}
    found: list[tuple[Any, ...]] = []
    while missing:
        best = max(numbers, key=lambda chosen: len(missing & _pairs_in(chosen)))
        missing -= _pairs_in(best)
        found.append(tuple(axis[i] for axis, i in zip(axes, best, strict=True)))
    return found


def _pairs_in(chosen: tuple[int, ...]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    return set(itertools.combinations(enumerate(chosen), 2))
