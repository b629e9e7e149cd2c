"""One clock from what happened before what: messages of a workload, and its collectives.

A limit says that an event was not later than another: a send began no later than the wait for it
ended, and nobody leaves a collective before all have entered it. With s read on the clock of i and
r on that of j, the difference j - i was at most r - s when the clock of i showed s. That holds
whatever the network does. Messages the other way limit the difference from below, and a cycle of
ranks does where no message comes back.

    windows      of at most 10 s, in which the difference of two clocks is a line (path.py says how
                 much it is not); the lines meet at the ends of windows
    bound        how far the line can be from the estimate at these ends, by all limits of all ranks
    estimate     keeps away from all limits (margins.py), along lines on which the least times of
                 messages stay the same (floors.py)
    refused      limits that add up to less than 0 around a cycle: joined events do not belong
                 together

Limits are put onto a common time axis with an affine correction for each clock, first a crude one,
then by the estimates. What the axes of two ranks can still differ by costs `_STEEPEST` of that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.capture.manifest import Alignment, ClockSegment, PairClock, RankAlignment
from kprof.clocks.differences import bounded_together, close, contradiction, middle
from kprof.clocks.floors import estimate
from kprof.clocks.hulls import Floats, highest_at
from kprof.clocks.limits import WINDOW_S, ContradictionError, Ints, Limits, RankClock
from kprof.clocks.margins import Near
from kprof.clocks.offset import MAX_DRIFT
from kprof.clocks.path import curvature_prior_ns
from kprof.errors import ClockError

# Corrected clocks: both the correction and the clock may be off by MAX_DRIFT.
_STEEPEST: Final = 2 * MAX_DRIFT
_MAX_PASSES: Final = 8
# How often the limits of pairs without a way back are tightened by those of the others.
_MAX_ROUNDS: Final = 3
# How many windows are one line where a window lacks messages, as well as all of them.
_WIDTHS: Final = (2, 4, 8, 16)
_NEGLIGIBLE_NS: Final = 0.5
# All ranks are bounded against all: with more, that takes hours.
_MAX_RANKS: Final = 2048
# With more unknowns, the estimate is the middle at the ends of windows.
_MAX_KEPT_AWAY: Final = 1000
# Contradictions up to this are rounding.
_ROUNDING_NS: Final = 1e-3
# With more ranks, the manifest keeps bounds against the reference only.
_MAX_RANKS_IN_PAIRS: Final = 64


@dataclass(frozen=True)
class Fit:
    """Clocks of `ranks` at the ends of windows: `offset_ns[k, r]` is what rank r's corrected clock
    shows more than the first one's at `at_ns[k]`, and `limits_ns[k, a, b]` the most that b's can
    show more than a's."""

    ranks: tuple[int, ...]
    at_ns: Floats
    offset_ns: Floats
    limits_ns: Floats

    @property
    def bounds_ns(self) -> Floats:
        """How far the estimate of every pair can be from the truth, (n, n)."""
        off_ns = self.offset_ns[:, None, :] - self.offset_ns[:, :, None]
        bounds: Floats = np.maximum(self.limits_ns - off_ns, 0.0).max(axis=0)
        return np.maximum(bounds, bounds.T)


@dataclass(frozen=True)
class _Points:
    """The limits of one pair on the common axis: at `x` the second is at most `u` ahead."""

    x: Floats
    u: Floats
    number: Ints

    def where(self, chosen: NDArray[np.bool_], slack_ns: float) -> _Points:
        return _Points(self.x[chosen], self.u[chosen] + slack_ns, self.number[chosen])

    def and_ends(self, x: Floats, u: Floats) -> _Points:
        """With limits that follow from those of other pairs."""
        number = np.full(len(x), -1)
        return _Points(np.r_[self.x, x], np.r_[self.u, u], np.r_[self.number, number])


_NO_POINTS: Final = _Points(np.zeros(0), np.zeros(0), np.zeros(0, np.int64))
_Sides = dict[tuple[int, int], _Points]


class _Ends:
    """The limits at the ends of windows, (windows + 1, ranks, ranks), before they are combined."""

    def __init__(self, at_ns: Floats, count: int) -> None:
        self.at_ns = at_ns
        self.limits_ns = np.full((len(at_ns), count, count), np.inf)
        self.number = np.full((len(at_ns), count, count), -1)

    def windows(self, sides: _Sides, width: int = 1) -> list[_Sides]:
        """The points of each pair by window, or by so many neighbouring ones, in which the line is
        less of a line."""
        inner = self.at_ns[1:-1]
        place = {pair: np.searchsorted(inner, points.x) for pair, points in sides.items()}
        seconds = np.array([width, 1]) * (self.at_ns[1] - self.at_ns[0]) / 1e9
        wider, one = map(curvature_prior_ns, seconds.tolist())
        found: list[_Sides] = []
        for first in range(len(self.at_ns) - width):
            chosen = {
                pair: (each >= first) & (each < first + width) for pair, each in place.items()
            }
            found.append(
                {
                    pair: sides[pair].where(rows, wider - one)
                    for pair, rows in chosen.items()
                    if rows.any()
                }
            )
        return found

    def tighten(self, first: int, last: int, sides: _Sides) -> None:
        """By all lines that the points between two ends allow."""
        for pair, points in sides.items():
            other = sides.get(pair[::-1], _NO_POINTS)
            for knot in (first, last):
                highest, row = highest_at(
                    self.at_ns[knot], (points.x, points.u), (other.x, -other.u), _STEEPEST
                )
                if highest < self.limits_ns[(knot, *pair)]:
                    self.limits_ns[(knot, *pair)] = highest
                    self.number[(knot, *pair)] = points.number[row]

    def spread(self) -> None:
        """Clocks drift only so fast from one end to another."""
        for order in (range(1, len(self.at_ns)), range(len(self.at_ns) - 2, -1, -1)):
            for knot in order:
                near = knot - 1 if order.step > 0 else knot + 1
                far_ns = abs(self.at_ns[knot] - self.at_ns[near]) * _STEEPEST
                limits_ns = self.limits_ns[near] + far_ns
                is_less = limits_ns < self.limits_ns[knot]
                self.limits_ns[knot][is_less] = limits_ns[is_less]
                self.number[knot][is_less] = self.number[near][is_less]

    def close(self, ranks: Sequence[int]) -> None:
        """By the limits of other pairs; raises ContradictionError."""
        for knot, limits_ns in enumerate(self.limits_ns):
            closed = close(limits_ns)
            if closed.diagonal().min() < -_ROUNDING_NS and (cycle := contradiction(limits_ns)):
                sides = [*itertools.pairwise(cycle), (cycle[-1], cycle[0])]
                numbers = tuple(int(self.number[(knot, *side)]) for side in sides)
                by_ns = -sum(float(limits_ns[side]) for side in sides)
                raise ContradictionError(tuple(ranks[i] for i in cycle), numbers, by_ns)
            self.limits_ns[knot] = closed

    def with_ends(self, window: int, sides: _Sides) -> _Sides:
        """The points of pairs with what is known at the ends of the window by now."""
        knots = [window, window + 1]
        pairs = {*sides, *(pair[::-1] for pair in sides)}
        return {
            pair: sides.get(pair, _NO_POINTS).and_ends(
                self.at_ns[knots], self.limits_ns[knots, pair[0], pair[1]]
            )
            for pair in pairs
        }


class Clocks:
    """The clocks of ranks that bound each other, corrected better with every `fit`."""

    def __init__(self, limits: Sequence[Limits], clocks: Mapping[int, RankClock]) -> None:
        """`limits` in any order, several of a pair allowed; `clocks` of all ranks."""
        self.ranks = _bounded(limits, sorted(clocks))
        self.clocks = [clocks[rank] for rank in self.ranks]
        place = {rank: idx for idx, rank in enumerate(self.ranks)}
        self._limits = [
            each.binding(clocks)
            for each in limits
            if each.before in place and each.after in place and len(each.number)
        ]
        self._place = place
        self._offset_ns = np.zeros(len(self.ranks))
        self._rate = np.zeros(len(self.ranks))
        longest_ns = max(each.last_ns - each.first_ns for each in self.clocks)
        self._num_windows = max(1, round(np.ceil(longest_ns / (WINDOW_S * 1e9))))

    def corrected(self, idx: int, local_ns: Ints) -> Floats:
        """Readings of a rank's clock on the common axis, which begins in the middle."""
        since_ns = (local_ns - self.clocks[idx].middle_ns).astype(float)
        return since_ns * (1 + self._rate[idx]) + self._offset_ns[idx]

    def local(self, idx: int, corrected_ns: float) -> int:
        """The reading of a rank's clock at a place of its own corrected axis."""
        since_ns = (corrected_ns - self._offset_ns[idx]) / (1 + self._rate[idx])
        return self.clocks[idx].middle_ns + round(float(since_ns))

    def fit(self) -> Fit:
        """Raises ContradictionError."""
        axis_ns = float(max(each.last_ns - each.first_ns for each in self.clocks))
        fit = self._fit(_STEEPEST * axis_ns)
        for _ in range(_MAX_PASSES):
            if _STEEPEST * axis_ns < _NEGLIGIBLE_NS:
                return self._settled(fit)
            before_ns, axis_ns = axis_ns, self._off_axis_ns(fit)
            if axis_ns > before_ns / 2:
                break
            fit = self._corrected_by(fit, axis_ns)
        # The axes are as far off as the middle of wide bounds; those of an estimate are not.
        estimated = self._settled(fit)
        return self._settled(self._corrected_by(estimated, self._off_axis_ns(estimated)))

    def _corrected_by(self, fit: Fit, axis_ns: float) -> Fit:
        """The next fit, on the axes that this one gives, which clocks are up to `axis_ns` off."""
        self._correct(fit)
        return self._fit(_STEEPEST * axis_ns)

    def _settled(self, fit: Fit) -> Fit:
        """With an estimate by all limits: the middle at the ends of windows knows nothing of what
        lies between them."""
        if fit.offset_ns.size > _MAX_KEPT_AWAY:
            return fit
        sides = self._sides(0.0, with_steps=False)
        # Where there are no messages, what follows at the ends of windows is all that is known.
        for pair in itertools.permutations(range(len(self.ranks)), 2):
            known = sides.get(pair, _NO_POINTS)
            sides[pair] = known.and_ends(fit.at_ns, fit.limits_ns[(slice(None), *pair)])
        sizes = [len(each.x) for each in sides.values()]
        before, after = np.repeat(np.array([*sides]).T, sizes, axis=1)
        x, u = (np.concatenate([getattr(each, n) for each in sides.values()]) for n in ("x", "u"))
        knot = np.clip(np.searchsorted(fit.at_ns, x) - 1, 0, len(fit.at_ns) - 2)
        later = (x - fit.at_ns[knot]) / (fit.at_ns[knot + 1] - fit.at_ns[knot])
        rooms = fit.limits_ns + fit.limits_ns.transpose(0, 2, 1)
        is_end = np.concatenate([each.number for each in sides.values()]) < 0
        room = np.where(
            is_end,
            rooms[knot + (later > 0.5), before, after],
            rooms.min(axis=0)[before, after],
        )
        near = Near(before, after, knot, later, u, np.maximum(room, 1.0))
        bend_ns = curvature_prior_ns(2 * (fit.at_ns[1] - fit.at_ns[0]) / 1e9) / 2
        return replace(fit, offset_ns=estimate(near, fit.offset_ns, bend_ns))

    def _fit(self, slack_ns: float) -> Fit:
        """With axes of ranks that are off by what costs `slack_ns`."""
        at_ns = self._ends_ns()
        slack_ns += curvature_prior_ns((at_ns[1] - at_ns[0]) / 1e9)
        ends, sides = _Ends(at_ns, len(self.ranks)), self._sides(slack_ns)
        by_window = ends.windows(sides)
        for first, points in enumerate(by_window):
            ends.tighten(first, first + 1, points)
        has_gaps = any(pair not in each for each in by_window for pair in sides)
        widths = {width for width in _WIDTHS if width < len(by_window)} | {len(by_window)}
        for width in sorted(widths) if has_gaps else _WIDTHS[:1]:
            for first, points in enumerate(ends.windows(sides, width)):
                ends.tighten(first, first + width, points)
        ends.spread()
        ends.close(self.ranks)
        has_one_way = any(pair[::-1] not in each for each in by_window for pair in each)
        for _ in range(_MAX_ROUNDS if has_one_way else 0):
            for first, points in enumerate(by_window):
                ends.tighten(first, first + 1, ends.with_ends(first, points))
            ends.close(self.ranks)
        offset_ns = np.array([middle(each) for each in ends.limits_ns])
        return Fit(tuple(self.ranks), at_ns, offset_ns, ends.limits_ns)

    def _ends_ns(self) -> Floats:
        ends = [
            self.corrected(idx, np.array([each.first_ns, each.last_ns]))
            for idx, each in enumerate(self.clocks)
        ]
        first_ns, last_ns = np.min(ends), np.max(ends)
        return np.linspace(first_ns, max(last_ns, first_ns + 1), self._num_windows + 1)

    def _sides(self, slack_ns: float, *, with_steps: bool = True) -> _Sides:
        sides: _Sides = {}
        for each in self._limits:
            before, after = self._place[each.before], self._place[each.after]
            x = self.corrected(before, each.sent_ns)
            u = self.corrected(after, each.seen_ns) - x + slack_ns
            if with_steps:
                u += self.clocks[after].step_ns
                u += self.clocks[after].error_ns + self.clocks[before].error_ns
            points = _Points(x, u, each.number)
            if (known := sides.get((before, after))) is not None:
                points = _Points(
                    *(np.r_[getattr(known, n), getattr(points, n)] for n in ("x", "u", "number"))
                )
            sides[before, after] = points
        return sides

    def _off_axis_ns(self, fit: Fit) -> float:
        """How far a clock can be from the axis once `_correct` has used this fit."""
        slope, at_zero_ns = self._line(fit)
        rest_ns = fit.offset_ns - fit.at_ns[:, None] * slope - at_zero_ns
        return float(fit.bounds_ns.max() + np.ptp(rest_ns, axis=1).max())

    def _line(self, fit: Fit) -> tuple[Floats, Floats]:
        """Slopes of every rank's offset, and its values at 0, with which two corrections differ by
        no more than clocks do: wide bounds allow any slope."""
        slope = (fit.offset_ns[-1] - fit.offset_ns[0]) / (fit.at_ns[-1] - fit.at_ns[0])
        rate = (1 + self._rate) * (1 - slope) - 1
        middle = np.clip((rate.min() + rate.max()) / 2, -MAX_DRIFT / 2, MAX_DRIFT / 2)
        rate = np.clip(rate, middle - MAX_DRIFT / 2, middle + MAX_DRIFT / 2)
        slope = 1 - (1 + rate) / (1 + self._rate)
        ends = [0, -1]
        return slope, fit.offset_ns[ends].mean(axis=0) - slope * fit.at_ns[ends].mean()

    def _correct(self, fit: Fit) -> None:
        slope, at_zero_ns = self._line(fit)
        self._offset_ns = self._offset_ns * (1 - slope) - at_zero_ns
        self._rate = (1 + self._rate) * (1 - slope) - 1


def align_by_limits(
    limits: Sequence[Limits], clocks: Mapping[int, RankClock], method: str
) -> Alignment:
    """The alignment of the ranks that bound each other to the first of them, which may leave ranks
    out. Both bounds of a pair are the same: nothing is assumed. Raises ContradictionError, and
    ClockError where no rank bounds another."""
    found = Clocks(limits, clocks)
    fit = found.fit()
    shown = [[found.local(i, x + off) for i, off in enumerate(row)] for x, row in _ends_of(fit)]
    local_ns = np.array(shown, dtype=np.int64)
    # Rounded once here, and again where the correction of a distant clock is a large float.
    rest_ns = 1.0 + np.spacing(np.abs(local_ns - local_ns[:, :1]).max().astype(float))
    bounds_ns = fit.bounds_ns + rest_ns
    ranks = tuple(
        RankAlignment(rank, _segments(local_ns, i), *[float(bounds_ns[0, i]) * (i > 0)] * 2)
        for i, rank in enumerate(found.ranks)
    )
    counts = {(each.before, each.after): 0 for each in limits}
    for each in limits:
        counts[each.before, each.after] += len(each.number)
    pairs = tuple(
        _pair_clock(local_ns, bounds_ns, found.ranks, pair, counts, method)
        for pair in itertools.combinations(range(len(ranks)), 2)
        if len(ranks) <= _MAX_RANKS_IN_PAIRS
    )
    return Alignment(method, found.ranks[0], ranks, max(counts.values()), pairs)


def _ends_of(fit: Fit) -> Iterator[tuple[float, Floats]]:
    return zip(fit.at_ns.tolist(), fit.offset_ns, strict=True)


def _segments(local_ns: Ints, idx: int) -> tuple[ClockSegment, ...]:
    """From what all clocks show at the ends of windows, (k, n)."""
    own, correction = local_ns[:, idx], local_ns[:, 0] - local_ns[:, idx]
    if idx == 0:
        return (ClockSegment(0, 0.0),)
    return tuple(
        ClockSegment(int(own[k]), float(correction[k]), float(drift) * 1e6)
        for k, drift in enumerate(np.diff(correction) / np.diff(own))
    )


def _pair_clock(
    local_ns: Ints,
    bounds_ns: Floats,
    ranks: Sequence[int],
    pair: tuple[int, int],
    counts: Mapping[tuple[int, int], int],
    method: str,
) -> PairClock:
    a, b = (local_ns[:, idx] for idx in pair)
    first, second = (ranks[idx] for idx in pair)
    return PairClock(
        a=first,
        b=second,
        offset_ns=float(b[0] - a[0]),
        drift_ppm=float((b[-1] - b[0]) - (a[-1] - a[0])) / float(a[-1] - a[0]) * 1e6,
        bound_ns=float(bounds_ns[pair]),
        rigorous_bound_ns=float(bounds_ns[pair]),
        num_rounds=counts.get((first, second), 0) + counts.get((second, first), 0),
        num_calibrations=len(local_ns) - 1,
        method=method,
    )


def _bounded(limits: Sequence[Limits], ranks: Sequence[int]) -> list[int]:
    """The ranks that bound each other; raises ClockError where there are no two, or too many."""
    if len(ranks) > _MAX_RANKS:
        raise ClockError(
            f"{len(ranks):,} ranks are more than the {_MAX_RANKS:,} that are aligned by messages"
        )
    said = np.full((len(ranks), len(ranks)), np.inf)
    place = {rank: idx for idx, rank in enumerate(ranks)}
    for each in limits:
        if len(each.number):
            said[place[each.before], place[each.after]] = 0.0
    together = bounded_together(close(said))
    if len(together) < 2:
        raise ClockError(
            "no two ranks bound each other: that takes messages both ways, a cycle of ranks, or a "
            "collective"
        )
    return [ranks[idx] for idx in together]
