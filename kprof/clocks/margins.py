"""Lines that keep away from all limits, where the estimate of clocks begins (floors.py).

Of the lines that meet the limits, the one wanted leaves each message as much time as it can. A
limit that is met by a margin m costs exp(-m / s). So what counts is limits that are hardly met, and
of those of a direction many rather than the tightest alone. The scale s of a pair is a part of how
far its limits are apart. It begins large: then Newton's method finds the way from anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.clocks.hulls import Floats

Rows = NDArray[np.intp]

_SCALES: Final = (4.0, 1.0, 0.25, 0.125, 0.0625, 0.03125)
# Where many limits outweigh one that is not met, smaller scales let the worst one count.
_FINER: Final = tuple(2.0**-i for i in range(6, 15))
_MAX_STEPS: Final = 12
_LEAST_GAIN: Final = 1e-4
_SHORTEST_STEP: Final = 1 / 64
_LARGEST_EXPONENT: Final = 60.0
# What holds lines that no limit holds, as a part of what limits do.
_HOLD: Final = 1e-6


@dataclass(frozen=True)
class Near:
    """Limits at moments between two ends of windows: at `later` of the way from end `knot` to the
    next, rank `after` is at most `most` ahead of rank `before`. `room` is how far the limits of the
    pair are apart. Columns of shape (n,)."""

    before: Rows
    after: Rows
    knot: Rows
    later: Floats
    most: Floats
    room: Floats

    def margins(self, offsets: Floats) -> Floats:
        """By how much lines through `offsets`, (ends, ranks), meet the limits."""
        ends = [
            offsets[k, self.after] - offsets[k, self.before] for k in (self.knot, self.knot + 1)
        ]
        return self.most - ends[0] * (1 - self.later) - ends[1] * self.later

    def as_a_whole(self, offsets: Floats) -> Near:
        """Limits of how far ranks as a whole may be from lines through `offsets`. What counts alike
        for a pair has one room: limits with more would outweigh tighter ones."""
        pairs = np.stack([self.before, self.after])
        pair = np.unique(pairs, axis=1, return_inverse=True)[1].ravel()
        least = np.full(pair.max() + 1, np.inf)
        np.minimum.at(least, pair, self.room)
        knot, later = np.zeros_like(self.knot), np.full_like(self.later, 0.5)
        return replace(self, knot=knot, later=later, most=self.margins(offsets), room=least[pair])

    def rows(self, rows: Rows) -> Near:
        """Only these limits."""
        return Near(*(getattr(self, each.name)[rows] for each in fields(self)))


def keep_away(near: Near, offsets: Floats) -> Floats:
    """Lines, (ends, ranks), that keep away from the limits, begun at `offsets`. Rank 0 stays."""
    cost = _Cost(near, *offsets.shape)
    for scale in (*_SCALES, *_FINER):
        if scale in _FINER and near.margins(offsets).min() >= 0:
            break
        for _ in range(_MAX_STEPS):
            moved = cost.step(offsets, near.room * scale)
            if moved is None:
                break
            offsets = moved
    return offsets


class _Cost:
    """What all limits cost. Limits of the same ranks and ends are added up first."""

    def __init__(self, near: Near, ends: int, ranks: int) -> None:
        self._near, self._size = near, ends * ranks
        group = (near.knot * ranks + near.before) * ranks + near.after
        groups, self._group = np.unique(group, return_inverse=True)
        knot, before, after = groups // ranks**2, groups // ranks % ranks, groups % ranks
        # The places of the four offsets that a margin depends on: early and late, after and before.
        self._places = [(knot + k) * ranks + each for k in (0, 1) for each in (after, before)]
        self._is_free = np.tile(np.arange(ranks) > 0, ends)

    def _weights(self, offsets: Floats, scale: Floats) -> Floats:
        exponents = -self._near.margins(offsets) / scale
        return np.exp(np.minimum(exponents, _LARGEST_EXPONENT))

    def step(self, offsets: Floats, scale: Floats) -> Floats | None:
        """The next lines, None where little is gained."""
        weights, free = self._weights(offsets, scale), self._is_free
        gradient, curvature = self._derivatives(weights, scale)
        matrix = curvature[np.ix_(free, free)]
        matrix[np.diag_indices_from(matrix)] += _HOLD * matrix.diagonal().max()
        direction = np.zeros(self._size)
        direction[free] = -np.linalg.solve(matrix, gradient[free])
        length, enough = 1.0, weights.sum() * (1 - _LEAST_GAIN)
        while length >= _SHORTEST_STEP:
            moved = offsets + length * direction.reshape(offsets.shape)
            if self._weights(moved, scale).sum() < enough:
                return moved
            length /= 2
        return None

    def _derivatives(self, weights: Floats, scale: Floats) -> tuple[Floats, Floats]:
        shares = [(1 - self._near.later) / scale, self._near.later / scale]
        signs = (1.0, -1.0, 1.0, -1.0)
        once = [np.bincount(self._group, weights * each) for each in shares]
        twice = [[np.bincount(self._group, weights * a * b) for a in shares] for b in shares]
        gradient, curvature = np.zeros(self._size), np.zeros((self._size, self._size))
        for i, place in enumerate(self._places):
            np.add.at(gradient, place, signs[i] * once[i // 2])
            for j, other in enumerate(self._places):
                np.add.at(curvature, (place, other), signs[i] * signs[j] * twice[i // 2][j // 2])
        return gradient, curvature
