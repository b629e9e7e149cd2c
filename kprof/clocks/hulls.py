"""What binds among many limits of the difference of two clocks, and how far they let it be.

A limit is a point (x, u): at time x the difference is at most u. Over a window in which the clocks
run at steady rates the difference is a line, so only points on the lower convex hull can bind.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]


def lower_hull(x: Floats, u: Floats) -> Rows:
    """The rows of the points (n,) on their lower convex hull, by x. A map of the plane that keeps
    lines and the direction of u keeps the hull."""
    order = np.lexsort((u, x))
    order = order[np.r_[True, np.diff(x[order]) > 0]]
    x, u = x[order], u[order]
    kept, pending = [0], [(0, len(x) - 1, np.arange(1, max(1, len(x) - 1)))]
    # Quickhull: between two points of the hull, the one furthest below their chord is another.
    while pending:
        first, last, between = pending.pop()
        slope = (u[last] - u[first]) / (x[last] - x[first]) if last > first else 0.0
        below = u[first] + slope * (x[between] - x[first]) - u[between]
        between = between[below > 0]
        if not len(between):
            kept.append(last)
            continue
        lowest = int(between[np.argmax(below[below > 0])])
        pending.append((lowest, last, between[between > lowest]))
        pending.append((first, lowest, between[between < lowest]))
    return order[np.unique(kept)]


def highest_at(
    at: float, upper: tuple[Floats, Floats], lower: tuple[Floats, Floats], steepest: float
) -> tuple[float, int]:
    """The highest value at `at` of a line below the points `upper` and above the points `lower`,
    and the row of the upper point that limits it (-1: none).

    `at` lies left or right of all points. Without a point of `lower`, the line is limited by its
    slope, which is within `steepest` of 0.
    """
    (x, u), (x_low, low) = upper, lower
    if not len(x):
        return np.inf, -1
    away = np.abs(x - at)
    highest = u + steepest * away
    if len(x_low):
        # A line through a point of each, the upper one nearer: beyond it, it can only be lower.
        beyond = np.abs(x_low - at)[None, :] - away[:, None]
        rise = (u[:, None] - low[None, :]) * away[:, None]
        through = np.full(beyond.shape, np.inf)
        np.divide(rise, beyond, out=through, where=beyond > 0)
        highest = np.minimum(highest, u + through.min(axis=1))
    row = int(np.argmin(highest))
    return float(highest[row]), row
