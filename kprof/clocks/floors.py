"""The estimate of clocks: lines on which the least times of messages stay the same.

The least time that messages of a direction take is constant, but under load few of them take it, at
other moments than those of the way back. Lines that only keep away from limits (margins.py) lean to
where no message was fast. On the right ones, the least times of many moments agree. So each
direction has a level of its own, fitted together with the lines, and what is far from it counts
little (residuals have a Cauchy distribution). Its scale begins large: then there is one best
answer.

That says how clocks drift. Where each lies as a whole is what keeps away from the limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from kprof.clocks.hulls import Floats
from kprof.clocks.margins import Near, Rows, keep_away

_SCALES: Final = (0.5, 0.25, 0.125, 0.0625)
_MAX_STEPS: Final = 12
_SMALLEST_STEP_NS: Final = 1.0
# At how many moments of a window the least times are compared.
_MOMENTS: Final = 12
# What holds lines that no message holds, as a part of what messages do.
_HOLD: Final = 1e-6


def estimate(near: Near, offsets: Floats, bend_ns: float) -> Floats:
    """Lines, (ends, ranks), that meet the limits, begun at `offsets`. Rank 0 stays. An end is
    typically `bend_ns` off the line through its neighbours."""
    away = keep_away(near, offsets)
    level = _level(near, away, bend_ns)
    # Every rank as a whole: where one window has all limits, its ends move alike.
    level = level + keep_away(near.as_a_whole(level), np.zeros((2, offsets.shape[1])))[0]
    # Not further than the first limit in the way.
    least, margins = near.margins(away), near.margins(level)
    is_worse = margins < np.minimum(least, 0.0)
    room = np.maximum(least, 0.0)[is_worse] / (least - margins)[is_worse]
    part = room.min(initial=1.0)
    return away + part * (level - away)


def _level(near: Near, offsets: Floats, bend_ns: float) -> Floats:
    unit = np.eye(len(offsets))
    bends = (unit[1:-1] - (unit[:-2] + unit[2:]) / 2) / bend_ns
    for scale in _SCALES:
        floors = _Floors.of(near, offsets)
        for _ in range(_MAX_STEPS):
            moved = floors.step(offsets, scale, bends)
            offsets = offsets + moved
            if np.abs(moved).max() < _SMALLEST_STEP_NS:
                break
    return offsets


@dataclass(frozen=True)
class _Floors:
    """The limits that leave lines the least margin, one for each direction and moment; `direction`
    numbers the directions, (n,)."""

    near: Near
    direction: Rows

    @staticmethod
    def of(near: Near, offsets: Floats) -> _Floors:
        moment = np.floor((near.knot + near.later) * _MOMENTS)
        order = np.lexsort((near.margins(offsets), moment, near.after, near.before))
        direction = (near.before * offsets.shape[1] + near.after)[order]
        is_new = np.diff(direction, prepend=-1) != 0
        is_first = is_new | (np.diff(moment[order], prepend=-1) != 0)
        return _Floors(near.rows(order[is_first]), (np.cumsum(is_new) - 1)[is_first])

    def step(self, offsets: Floats, scale: float, bends: Floats) -> Floats:
        """How far to move the lines: the least squares of residuals by their present weights."""
        ends, ranks = offsets.shape
        push, stiff = self._by_direction(offsets, scale)
        first = np.flatnonzero(np.diff(self.direction, prepend=-1))
        a, b = self.near.after[first], self.near.before[first]
        gradient = -offsets.T @ bends.T @ bends
        curvature = np.zeros((ranks, ranks, ends, ends))
        curvature[range(ranks), range(ranks)] = bends.T @ bends
        for i, sign in ((a, 1), (b, -1)):
            np.add.at(gradient, i, sign * push)
            for j, other in ((a, sign), (b, -sign)):
                np.add.at(curvature, (i, j), other * stiff)
        size = (ranks - 1) * ends
        matrix = curvature[1:, 1:].transpose(0, 2, 1, 3).reshape(size, size)
        matrix[np.diag_indices(size)] += _HOLD * matrix.diagonal().max()
        moved = np.zeros((ranks, ends))
        moved[1:] = np.linalg.solve(matrix, gradient[1:].ravel()).reshape(ranks - 1, ends)
        return moved.T

    def _by_direction(self, offsets: Floats, scale: float) -> tuple[Floats, Floats]:
        """What the messages of a direction do to the lines at the ends, (directions, ends), and how
        that changes with the lines, (directions, ends, ends)."""
        of, knot, later = self.direction, self.near.knot, self.near.later
        margins, scales = self.near.margins(offsets), self.near.room * scale
        levels = np.bincount(of, margins) / np.bincount(of)
        for _ in range(_MAX_STEPS):
            weights = 1 / (scales**2 + (margins - levels[of]) ** 2)
            total = np.bincount(of, weights)
            levels = np.bincount(of, weights * margins) / total
        shares = 1 - later, later
        count, ends = len(levels), len(offsets)
        push, weighted = np.zeros((2, count, ends))
        stiff = np.zeros((count, ends, ends))
        for i, share in enumerate(shares):
            np.add.at(weighted, (of, knot + i), weights * share)
            np.add.at(push, (of, knot + i), weights * share * (margins - levels[of]))
            for j, other in enumerate(shares):
                np.add.at(stiff, (of, knot + i, knot + j), weights * share * other)
        # Levels move with the lines.
        stiff -= weighted[:, :, None] * weighted[:, None, :] / total[:, None, None]
        return push, stiff
