"""A rank's clock offset over a recording: interpolated between calibrations, with its error.

Drift is not constant. So the bound grows by half the largest distance of a calibration from the
line through its neighbours (a parabola would need a quarter), and by no less than what was measured
on H200 over the same gap (CURVATURE_PRIOR). A calibration with a wider bound than its neighbours
give for its moment is left out. For launches outside of the calibrations, the bound grows by the
error that the nearest line may have there.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np

from kprof.clocks.offset import MAX_DRIFT

# (gap in s, ns): worst error of a straight line over a gap, against calibrations every second, on
# two hosts of H200. Outside of these gaps it is assumed to follow the power 1.5 (a random walk of
# the rate).
CURVATURE_PRIOR: Final = ((10.0, 68.0), (30.0, 340.0), (60.0, 703.0), (110.0, 1498.0))
_PRIOR_POWER: Final = 1.5


@dataclass(frozen=True)
class Outside:
    """How long launches ran before the first calibration and after the last one."""

    before_ns: float = 0.0
    after_ns: float = 0.0


ALL_INSIDE: Final = Outside()


@dataclass(frozen=True)
class Point:
    """One calibration of one rank against the reference; `idx` counts the calibrations."""

    idx: int
    local_ns: int
    offset_ns: float
    bound_ns: float
    rigorous_ns: float


_moment: Final = attrgetter("local_ns")


@dataclass(frozen=True)
class ClockPath:
    """A rank's offset to the reference over its calibrations; the reference has no points."""

    points: tuple[Point, ...] = ()

    def at(self, local_ns: int) -> float:
        """The offset, interpolated, or on the nearest line."""
        if len(self.points) < 2:
            return self.points[0].offset_ns if self.points else 0.0
        idx = bisect.bisect_right(self.points, local_ns, 1, len(self.points) - 1, key=_moment) - 1
        before, after = self.points[idx], self.points[idx + 1]
        fraction = (local_ns - before.local_ns) / max(after.local_ns - before.local_ns, 1)
        return before.offset_ns + fraction * (after.offset_ns - before.offset_ns)

    @property
    def gaps_ns(self) -> list[int]:
        """From one calibration to the next."""
        return [b.local_ns - a.local_ns for a, b in itertools.pairwise(self.points)]

    @property
    def drift_ppm(self) -> float:
        """The mean drift against the reference."""
        if not sum(self.gaps_ns):
            return 0.0
        first, last = self.points[0], self.points[-1]
        return (last.offset_ns - first.offset_ns) / (last.local_ns - first.local_ns) * 1e6

    @property
    def curvature_ns(self) -> float:
        """The error of interpolation: half of how far calibrations are off the neighbours' line."""
        prior = max((curvature_prior_ns(gap / 1e9) for gap in self.gaps_ns), default=0.0)
        measured = 0.0
        for before, middle, after in zip(
            self.points, self.points[1:], self.points[2:], strict=False
        ):
            on_line = ClockPath((before, after)).at(middle.local_ns)
            measured = max(measured, abs(middle.offset_ns - on_line))
        return max(prior, measured / 2)

    def extrapolation_ns(self, outside: Outside) -> float:
        """The error of the nearest line at launches before or after all calibrations."""
        if not self.points or outside == ALL_INSIDE:
            return 0.0
        if len(self.points) == 1:
            return max(outside.before_ns, outside.after_ns) * MAX_DRIFT
        ends = ((outside.before_ns, self.points[:2]), (outside.after_ns, self.points[-2:]))
        return max(_beyond_ns(distance_ns, *points) for distance_ns, points in ends)


def _beyond_ns(distance_ns: float, one: Point, other: Point) -> float:
    """A slope is as uncertain as its two calibrations, and changes over the whole distance."""
    gap_ns = max(other.local_ns - one.local_ns, 1)
    slope = (one.bound_ns + other.bound_ns) / gap_ns
    whole_ns = gap_ns + distance_ns
    return distance_ns * slope + 4 * curvature_prior_ns(whole_ns / 1e9) * distance_ns / whole_ns


def curvature_prior_ns(gap_s: float) -> float:
    """The error of a straight line over a gap between two calibrations, from CURVATURE_PRIOR."""
    gaps, errors = zip(*CURVATURE_PRIOR, strict=True)
    if gap_s <= gaps[0]:
        return float(errors[0] * (max(gap_s, 0.0) / gaps[0]) ** _PRIOR_POWER)
    if gap_s >= gaps[-1]:
        return float(errors[-1] * (gap_s / gaps[-1]) ** _PRIOR_POWER)
    return math.exp(np.interp(math.log(gap_s), np.log(gaps), np.log(errors)))


def without_outliers(points: Sequence[Point]) -> list[Point]:
    """Leave out calibrations much worse than the line through their neighbours; keep both ends."""
    kept = list(points)
    idx = 1
    while idx + 1 < len(kept):
        before, middle, after = kept[idx - 1 : idx + 2]
        gap_s = (after.local_ns - before.local_ns) / 1e9
        on_line_ns = max(before.bound_ns, after.bound_ns) + curvature_prior_ns(gap_s)
        if middle.bound_ns > 2 * on_line_ns:
            del kept[idx]
        else:
            idx += 1
    return kept
