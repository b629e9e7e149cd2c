"""Upper limits of differences between many unknowns: what follows from all of them together.

`limits[i, j]` is the most that unknown j can exceed unknown i, infinite where nothing is said. A
rank that only sends and another that only receives bound each other through a cycle of ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def close(limits: Matrix) -> Matrix:
    """The tightest limits, (n, n), that follow (Floyd and Warshall). A negative diagonal is a
    contradiction: `contradiction` names it."""
    closed = limits.copy()
    np.fill_diagonal(closed, np.minimum(closed.diagonal(), 0.0))
    for middle in range(len(closed)):
        np.minimum(closed, closed[:, middle, None] + closed[middle], out=closed)
    return closed


def contradiction(limits: Matrix) -> list[int]:
    """A cycle of unknowns whose limits add up to less than 0; empty where there is none."""
    count = len(limits)
    distance, before = np.zeros(count), np.full(count, -1)
    columns = np.arange(count)
    edges = limits.copy()
    np.fill_diagonal(edges, np.inf)
    shorter = np.zeros(count, np.bool_)
    for _ in range(count + 1):
        through = distance[:, None] + edges
        nearest = np.argmin(through, axis=0)
        found = through[nearest, columns]
        shorter = found < distance - 1e-6
        if not shorter.any():
            return []
        before[shorter], distance[shorter] = nearest[shorter], found[shorter]
    at = int(np.flatnonzero(shorter)[0])
    for _ in range(count):
        at = int(before[at])
    cycle = [at]
    while (at := int(before[at])) != cycle[0]:
        cycle.append(at)
    return cycle[::-1]


def middle(closed: Matrix) -> NDArray[np.float64]:
    """Unknowns, (n,), the first 0, that meet all limits and lie in the middle of where they can be
    against the first. The limits are closed and finite."""
    return (closed[0] - closed[:, 0]) / 2


def bounded_together(closed: Matrix) -> list[int]:
    """The largest set of unknowns that bound each other from both sides; of equals the first."""
    if not len(closed):
        return []
    both = np.isfinite(closed) & np.isfinite(closed.T)
    return np.flatnonzero(both[int(np.argmax(both.sum(axis=1)))]).tolist()
