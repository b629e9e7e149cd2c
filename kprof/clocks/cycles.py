"""Cycles to nanoseconds: a processor's cycle counter on the real-time clock of its device.

A cycle counter has a fine step (0.5 ns where NVIDIA's real-time clock has 32 ns), but every
processor has its own, and its rate follows the frequency. Chunk headers and the last record of a
track hold both clocks at one moment: an anchor. The anchors of a launch on one processor (SM, CU)
make one piecewise linear map:

    real time |                      .o   knots, the ends of straight pieces: as few pieces as pass
              |            .  o o .       all anchors within the clock's step and the scatter of its
              |      .  .                 readings
              |o .___________________ cycles

A reading of the real-time clock is up to one step early, so a line runs half a step above the
anchors. One anchor fixes the line to half a step, a hundred fix it to a few ns: pieces are long
where the frequency is constant, and halved where not. `error_ns` is the largest distance of an
anchor from its line. That bound is measured on every flush, not assumed.

Anchors come from device memory, so any may be damaged. `torn_anchors` finds those that contradict
the rest of their group by more than a second. The fit accepts anything, ends after some 64 rounds,
and never runs backwards.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, fields, replace
from typing import Final, NamedTuple

import numpy as np

from kprof import abi

# The least and the most ns that a cycle can take.
Limits = tuple[float, float]
Array = np.ndarray

# Over less time, the launch's common rate is better than a processor's own: on an H200 groups of
# SMs differ by 0.03 %, which is one step of 32 ns in 100 us.
_MIN_BASELINE_NS: Final = 100_000.0
# How far readings of an H200's real-time clock are from even steps (benchmarks/probe_overhead).
_SCATTER_NS: Final = 8.0
_MIN_GAP_NS: Final = 1000.0
# No counter runs that many times faster or slower than the nominal rate.
_MAX_RATE_RATIO: Final = 32.0
# An anchor reads one clock after the other; a CPU rank may lose its core between. A second is
# damage.
_MAX_CONTRADICTION_NS: Final = 1e9
# Clocks beyond this moment (146 years in ns) are damage, and sums of them would overflow.
_MAX_CLOCK: Final = 1 << abi.MAX_CLOCK_BITS


@dataclass(frozen=True)
class Anchors:
    """Both clocks at one moment, in columns: launch and processor say whose cycle counter it is."""

    launch: Array
    hw_id: Array
    cycles: Array
    realtime_ns: Array

    def __len__(self) -> int:
        return len(self.cycles)

    def rows(self, which: Array) -> Anchors:
        """The chosen anchors."""
        return Anchors(*(getattr(self, field.name)[which] for field in fields(self)))


@dataclass(frozen=True)
class _Knots:
    """Knots of all groups, in order; group g has the knots first[g] .. first[g + 1] - 1."""

    first: Array
    cycles: Array
    ns: Array
    rate: Array


@dataclass(frozen=True)
class CycleMap:
    """Piecewise linear maps, one for each (launch, processor); made by `fit_cycles`.

    Knots count from their group's first anchor: a float of ns since 1970 is only good to 256 ns.
    """

    keys: Array
    base_cycles: Array
    base_ns: Array
    knots: _Knots
    cycles_per_second: float
    error_ns: float = 0.0

    def to_ns(self, launch: Array, hw_id: Array, cycles: Array) -> Array:
        """Int64 real-time ns of int64 cycle counts.

        Every (launch, processor) must have an anchor.
        """
        return self._to_ns(np.searchsorted(self.keys, _keys(launch, hw_id)), cycles)

    def _to_ns(self, group: Array, cycles: Array) -> Array:
        relative = cycles - self.base_cycles[group]
        knots = self.knots
        begin = knots.first[group]
        # The first knot of a group also maps earlier cycles.
        knot = _first_above(knots.cycles, begin + 1, knots.first[group + 1], relative) - 1
        ns = knots.ns[knot] + (relative - knots.cycles[knot]) * knots.rate[knot]
        # Results of torn anchors must stay within 64 bits.
        limited = np.rint(ns).clip(-_MAX_CLOCK / 2, _MAX_CLOCK / 2)
        return self.base_ns[group] + limited.astype(np.int64)


def fit_cycles(anchors: Anchors, step_ns: float, nominal_cycles_per_second: float) -> CycleMap:
    """The maps through a flush's anchors (at least one); the nominal rate where they give none."""
    keys = _keys(anchors.launch, anchors.hw_id)
    order = np.lexsort((anchors.cycles, keys))
    keys, cycles, ns = keys[order], anchors.cycles[order], anchors.realtime_ns[order]
    first = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
    group = np.repeat(np.arange(len(first)), np.diff(first, append=len(keys)))
    relative_cycles = (cycles - cycles[first][group]).astype(np.float64)
    relative_ns = (ns - ns[first][group]).astype(np.float64)
    last = np.append(first[1:], len(keys)) - 1
    limits = _rate_limits(nominal_cycles_per_second)
    rates = _rates(
        keys[first] >> 32, relative_ns[last], relative_cycles[last], 1e9 / nominal_cycles_per_second
    ).clip(*limits)
    knots = _knots(_fit_lines(group, relative_cycles, relative_ns, rates, step_ns, limits), step_ns)
    common = float(1e9 / np.median(rates))
    fitted = CycleMap(keys[first], cycles[first], ns[first], knots, common)
    distance_ns = (fitted._to_ns(group, cycles) - ns).astype(np.float64) - step_ns / 2
    # One anchor fixes a line to half a step only, however well the line fits it.
    return replace(fitted, error_ns=max(step_ns / 2, float(np.abs(distance_ns).max())))


def _keys(launch: Array, hw_id: Array) -> Array:
    return (launch.astype(np.int64) << 32) | hw_id.astype(np.int64)


def _rate_limits(nominal_cycles_per_second: float) -> Limits:
    """The least and the most ns that a cycle can take."""
    nominal = 1e9 / nominal_cycles_per_second
    return nominal / _MAX_RATE_RATIO, nominal * _MAX_RATE_RATIO


def _first_above(values: Array, begin: Array, end: Array, wanted: Array) -> Array:
    """For every row the first index in begin .. end - 1 whose value exceeds `wanted`, else `end`.

    Values ascend.
    """
    low, high = begin, end
    while (is_open := low < high).any():
        middle = (low + high) // 2
        is_above = values[np.where(is_open, middle, 0)] > wanted
        low = np.where(is_open & ~is_above, middle + 1, low)
        high = np.where(is_open & is_above, middle, high)
    return low


def torn_anchors(anchors: Anchors, nominal_cycles_per_second: float) -> Array:
    """Which anchors are damaged: impossible in themselves, or far from others of their group."""
    is_torn = (np.minimum(anchors.cycles, anchors.realtime_ns) < 0) | (
        np.maximum(anchors.cycles, anchors.realtime_ns) >= _MAX_CLOCK
    )
    rows = np.flatnonzero(~is_torn)
    keys = _keys(anchors.launch, anchors.hw_id)[rows]
    order = np.lexsort((anchors.cycles[rows], keys))
    rows, keys = rows[order], keys[order]
    cycles, ns, limits = (
        anchors.cycles[rows],
        anchors.realtime_ns[rows],
        _rate_limits(nominal_cycles_per_second),
    )
    agrees = _is_possible(np.diff(cycles), np.diff(ns), limits) | (np.diff(keys) != 0)
    for key in np.unique(keys[1:][~agrees]):
        begin, end = np.searchsorted(keys, [key, key + 1])
        outside = _outside_longest_chain(cycles[begin:end], ns[begin:end], limits)
        is_torn[rows[begin + outside]] = True
    return is_torn


def _is_possible(cycles: Array, ns: Array, limits: Limits) -> Array:
    """Whether so many cycles can take so long."""
    least, most = limits
    return (ns >= cycles * least - _MAX_CONTRADICTION_NS) & (
        ns <= cycles * most + _MAX_CONTRADICTION_NS
    )


def _outside_longest_chain(cycles: Array, ns: Array, limits: Limits) -> Array:
    """The anchors of a group, in order of cycles, outside the longest chain of anchors that agree.

    Two anchors agree when neither `ns - least * cycles` nor `most * cycles - ns` falls from one to
    the other. Sorted by the first, a chain is a sequence that does not fall in the second; the
    longest is found in n log n.
    """
    x, y = (cycles - cycles[0]).astype(np.float64), (ns - ns[0]).astype(np.float64)
    slow, fast = y - limits[0] * x, limits[1] * x - y
    order = np.lexsort((fast, slow))
    ends: list[float] = []
    end_rows: list[int] = []
    before = np.full(len(x), -1)
    for row, value in zip(order.tolist(), fast[order].tolist(), strict=True):
        length = bisect_right(ends, value)
        before[row] = end_rows[length - 1] if length else -1
        ends[length : length + 1], end_rows[length : length + 1] = [value], [row]
    chain, row = [], end_rows[-1]
    while row >= 0:
        chain.append(row)
        row = int(before[row])
    kept = np.sort(np.array(chain))
    place = np.searchsorted(kept, np.arange(len(x)))
    agrees = np.ones(len(x), dtype=bool)
    for neighbour in (kept[np.maximum(place - 1, 0)], kept[np.minimum(place, len(kept) - 1)]):
        sign = np.where(np.arange(len(x)) >= neighbour, 1, -1)
        agrees &= _is_possible(sign * (x - x[neighbour]), sign * (y - y[neighbour]), limits)
    return np.flatnonzero(~agrees)


def _rates(launch: Array, elapsed_ns: Array, elapsed_cycles: Array, nominal: float) -> Array:
    """Ns per cycle: a group's own if its anchors are far apart, else its launch's, or of all."""
    whole = nominal
    if elapsed_ns.sum() >= _MIN_BASELINE_NS:
        whole = float(elapsed_ns.sum() / max(elapsed_cycles.sum(), 1.0))
    _, launch_idx = np.unique(launch, return_inverse=True)
    launch_ns = np.bincount(launch_idx, elapsed_ns)
    launch_cycles = np.maximum(np.bincount(launch_idx, elapsed_cycles), 1.0)
    of_launch = np.where(launch_ns >= _MIN_BASELINE_NS, launch_ns / launch_cycles, whole)[
        launch_idx
    ]
    own = elapsed_ns / np.maximum(elapsed_cycles, 1.0)
    return np.where(elapsed_ns >= _MIN_BASELINE_NS, own, of_launch)


class _Lines(NamedTuple):
    """Straight pieces from `first` to `last` cycles: `ns + rate * (cycles - center)`."""

    group: Array
    first: Array
    last: Array
    center: Array
    ns: Array
    rate: Array

    def at(self, line: Array, cycles: Array) -> Array:
        """Real time on the given lines."""
        return self.ns[line] + self.rate[line] * (cycles - self.center[line])

    def rows(self, which: Array) -> _Lines:
        """The chosen lines."""
        return _Lines(*(column[which] for column in self))


def _knots(lines: _Lines, step_ns: float) -> _Knots:
    """Both ends of every line, merged where lines come so close that time could run backwards."""
    ends = np.stack([lines.first, lines.last], axis=1)
    ends_ns = lines.at(np.arange(len(ends))[:, np.newaxis], ends) + step_ns / 2
    is_near = (ends_ns[1:, 0] - ends_ns[:-1, 1] < _MIN_GAP_NS) & (np.diff(lines.group) == 0)
    near = np.flatnonzero(is_near)
    for values in (ends, ends_ns):
        values[near, 1] = values[near + 1, 0] = (values[near, 1] + values[near + 1, 0]) / 2
    knot_group = np.repeat(lines.group, 2)
    # A line through one anchor has one knot as well.
    is_new = (np.diff(knot_group, prepend=-1) != 0) | (np.diff(ends.ravel(), prepend=-1) != 0)
    kept = np.flatnonzero(is_new)
    knot_group, knot_cycles = knot_group[kept], ends.ravel()[kept]
    first_knot = np.append(np.flatnonzero(np.diff(knot_group, prepend=-1)), len(knot_group))
    knot_ns = _rising(ends_ns.ravel()[kept], knot_group, first_knot)
    knot_rate = np.repeat(lines.rate, 2)[kept]
    inner = np.flatnonzero(np.diff(knot_group) == 0)
    knot_rate[inner] = np.diff(knot_ns)[inner] / np.diff(knot_cycles)[inner]
    return _Knots(first_knot, knot_cycles, knot_ns, knot_rate)


def _rising(ns: Array, group: Array, first: Array) -> Array:
    """`ns`, never below the one before it in its group, even where anchors contradict."""
    if not ((np.diff(ns) < 0) & (np.diff(group) == 0)).any():
        return ns
    return np.concatenate(
        [
            np.maximum.accumulate(ns[begin:end])
            for begin, end in zip(first[:-1].tolist(), first[1:].tolist(), strict=True)
        ]
    )


def _fit_lines(
    group: Array, cycles: Array, ns: Array, rates: Array, step_ns: float, limits: Limits
) -> _Lines:
    """As few lines as it takes: a line that misses an anchor by more than the scatter is halved.

    Each half has half the cycles, so any 64-bit counter ends after 64 rounds.
    """
    begin = np.flatnonzero(np.diff(group, prepend=-1))
    end = np.append(begin[1:], len(group))
    accepted: list[_Lines] = []
    while len(begin):
        lines, missed_ns = _regressions(group, begin, end, cycles, ns, rates, limits)
        is_split = (missed_ns > step_ns / 2 + _SCATTER_NS) & (lines.last > lines.first)
        accepted.append(lines.rows(~is_split))
        begin, end = begin[is_split], end[is_split]
        middle = (cycles[begin] + cycles[end - 1]) / 2
        # Floats round, so make sure that both halves have an anchor.
        middle_idx = np.clip(_first_above(cycles, begin, end, middle), begin + 1, end - 1)
        begin, end = np.concatenate([begin, middle_idx]), np.concatenate([middle_idx, end])
    lines = _Lines(*map(np.concatenate, zip(*accepted, strict=True)))
    return lines.rows(np.lexsort((lines.first, lines.group)))


def _regressions(
    group: Array, begin: Array, end: Array, cycles: Array, ns: Array, rates: Array, limits: Limits
) -> tuple[_Lines, Array]:
    """Lines of least squares (short pieces have the group's rate), and their largest misses."""
    length = end - begin
    starts = np.cumsum(length) - length
    piece = np.repeat(np.arange(len(begin)), length)
    anchor = np.arange(len(piece)) + (begin - starts)[piece]
    center = np.add.reduceat(cycles[anchor], starts) / length
    mean_ns = np.add.reduceat(ns[anchor], starts) / length
    x, y = cycles[anchor] - center[piece], ns[anchor] - mean_ns[piece]
    square = np.add.reduceat(x * x, starts)
    slope = (np.add.reduceat(x * y, starts) / np.maximum(square, 1.0)).clip(*limits)
    rate = np.where(ns[end - 1] - ns[begin] >= _MIN_BASELINE_NS, slope, rates[group[begin]])
    missed_ns = np.maximum.reduceat(np.abs(y - rate[piece] * x), starts)
    lines = _Lines(group[begin], cycles[begin], cycles[end - 1], center, mean_ns, rate)
    return lines, missed_ns
