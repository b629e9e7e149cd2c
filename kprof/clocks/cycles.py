"""Cycles to nanoseconds: a processor's cycle counter on the real-time clock of its device.

A cycle counter has a fine step (0.5 ns where NVIDIA's real-time clock has 32 ns), but every processor has its own and
its rate changes with the frequency. Chunk headers, and the last record of a track, hold both clocks at one moment: an
anchor. Anchors of one launch on one processor (SM, CU) make one piecewise linear map:

    real time |                      .o   knots, the ends of straight pieces: as few pieces as pass
              |            .  o o .       all anchors within the clock's step and the scatter of its
              |      .  .                 readings
              |o .___________________ cycles

A reading of the real-time clock is up to one step early, so that a line runs half a step above the anchors. One anchor
says where it is to half a step, a hundred to a few ns: pieces are long where the frequency holds, and halved where not.
`error_ns` is how far any anchor lies from the line: the bound that is stated, measured on every flush, not assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

# Over less time than this a launch's common rate is better than a processor's own: on an H200 groups of SMs differ by
# 0.03 %, which is one step of 32 ns in 100 us.
_MIN_BASELINE_NS: Final = 100_000.0
# Readings of the real-time clock are that far from even steps on an H200 (benchmarks/probe_overhead).
_SCATTER_NS: Final = 8.0
_MIN_GAP_NS: Final = 1000.0
_GROUP_SHIFT: Final = 40


@dataclass(frozen=True)
class Anchors:
    """Both clocks at one moment, in columns: launch and processor say whose cycle counter it is."""

    launch: np.ndarray
    hw_id: np.ndarray
    cycles: np.ndarray
    realtime_ns: np.ndarray

    def __len__(self) -> int:
        return len(self.cycles)


@dataclass(frozen=True)
class _Knots:
    """Knots of all groups, ordered by `place`; group g has the knots first[g] .. first[g + 1] - 1."""

    first: np.ndarray
    place: np.ndarray
    cycles: np.ndarray
    ns: np.ndarray
    rate: np.ndarray


@dataclass(frozen=True)
class CycleMap:
    """Piecewise linear maps, one for each (launch, processor); made by `fit_cycles`.

    Knots count from the first anchor of their group: as floats, ns since 1970 are only good to 256 ns.
    """

    keys: np.ndarray
    base_cycles: np.ndarray
    base_ns: np.ndarray
    knots: _Knots
    cycles_per_second: float
    error_ns: float = 0.0

    def to_ns(self, launch: np.ndarray, hw_id: np.ndarray, cycles: np.ndarray) -> np.ndarray:
        """Int64 real-time ns of int64 cycle counts; every (launch, processor) must have an anchor."""
        return self._to_ns(np.searchsorted(self.keys, _keys(launch, hw_id)), cycles)

    def _to_ns(self, group: np.ndarray, cycles: np.ndarray) -> np.ndarray:
        relative = cycles - self.base_cycles[group]
        knots = self.knots
        knot = np.searchsorted(knots.place, _place(group, relative), side="right") - 1
        knot = np.clip(knot, knots.first[group], knots.first[group + 1] - 1)
        ns = knots.ns[knot] + (relative - knots.cycles[knot]) * knots.rate[knot]
        moments: np.ndarray = self.base_ns[group] + np.rint(ns).astype(np.int64)
        return moments


def fit_cycles(anchors: Anchors, step_ns: float, nominal_cycles_per_second: float) -> CycleMap:
    """The maps through all anchors of a flush; the nominal rate serves where anchors give none."""
    keys = _keys(anchors.launch, anchors.hw_id)
    order = np.lexsort((anchors.cycles, keys))
    keys, cycles, ns = keys[order], anchors.cycles[order], anchors.realtime_ns[order]
    first = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
    group = np.repeat(np.arange(len(first)), np.diff(first, append=len(keys)))
    relative_cycles = (cycles - cycles[first][group]).astype(np.float64)
    relative_ns = (ns - ns[first][group]).astype(np.float64)
    last = np.append(first[1:], len(keys)) - 1
    rates = _rates(
        keys[first] >> 32, relative_ns[last], relative_cycles[last], 1e9 / nominal_cycles_per_second
    )
    knots = _knots(group, relative_cycles, relative_ns, rates, step_ns)
    common = float(1e9 / np.median(rates))
    fitted = CycleMap(keys[first], cycles[first], ns[first], knots, common)
    distance_ns = (fitted._to_ns(group, cycles) - ns).astype(np.float64) - step_ns / 2
    # One anchor says where the line is to half a step, however well the line fits it.
    return replace(fitted, error_ns=max(step_ns / 2, float(np.abs(distance_ns).max())))


def _keys(launch: np.ndarray, hw_id: np.ndarray) -> np.ndarray:
    keys: np.ndarray = (launch.astype(np.int64) << 32) | hw_id.astype(np.int64)
    return keys


def _place(group: np.ndarray, relative_cycles: np.ndarray) -> np.ndarray:
    """One number that sorts by group first; the cycles of one launch stay far below 2^40 (nine minutes)."""
    inside = np.clip(relative_cycles, 0, (1 << _GROUP_SHIFT) - 1).astype(np.int64)
    place: np.ndarray = (group.astype(np.int64) << _GROUP_SHIFT) + inside
    return place


def _rates(
    launch: np.ndarray, elapsed_ns: np.ndarray, elapsed_cycles: np.ndarray, nominal: float
) -> np.ndarray:
    """Ns per cycle of each group: its own where its anchors lie far apart, else its launch's, else that of all."""
    whole = nominal
    if elapsed_ns.sum() >= _MIN_BASELINE_NS:
        whole = float(elapsed_ns.sum() / elapsed_cycles.sum())
    _, launch_idx = np.unique(launch, return_inverse=True)
    launch_ns = np.bincount(launch_idx, elapsed_ns)
    launch_cycles = np.maximum(np.bincount(launch_idx, elapsed_cycles), 1.0)
    of_launch = np.where(launch_ns >= _MIN_BASELINE_NS, launch_ns / launch_cycles, whole)[
        launch_idx
    ]
    own = elapsed_ns / np.maximum(elapsed_cycles, 1.0)
    rates: np.ndarray = np.where(elapsed_ns >= _MIN_BASELINE_NS, own, of_launch)
    return rates


@dataclass(frozen=True)
class _Lines:
    """Straight pieces through the anchors begin .. end - 1: `ns + rate * (cycles - center)`."""

    begin: np.ndarray
    end: np.ndarray
    center: np.ndarray
    ns: np.ndarray
    rate: np.ndarray

    def at(self, line: np.ndarray, cycles: np.ndarray) -> np.ndarray:
        """Real time on the given lines."""
        ns: np.ndarray = self.ns[line] + self.rate[line] * (cycles - self.center[line])
        return ns


def _knots(
    group: np.ndarray, cycles: np.ndarray, ns: np.ndarray, rates: np.ndarray, step_ns: float
) -> _Knots:
    """Both ends of every line, made one where two lines come so close that a step between them could run backwards."""
    lines = _fit_lines(group, cycles, ns, rates, step_ns)
    ends = np.stack([cycles[lines.begin], cycles[lines.end - 1]], axis=1)
    ends_ns = lines.at(np.arange(len(ends))[:, np.newaxis], ends) + step_ns / 2
    is_near = (ends_ns[1:, 0] - ends_ns[:-1, 1] < _MIN_GAP_NS) & (np.diff(group[lines.begin]) == 0)
    near = np.flatnonzero(is_near)
    for values in (ends, ends_ns):
        values[near, 1] = values[near + 1, 0] = (values[near, 1] + values[near + 1, 0]) / 2
    knot_group = np.repeat(group[lines.begin], 2)
    place = _place(knot_group, ends.ravel())
    # The ends of a line through one anchor are one knot, too.
    kept = np.flatnonzero(np.diff(place, prepend=-1))
    knot_group, knot_cycles, knot_ns = knot_group[kept], ends.ravel()[kept], ends_ns.ravel()[kept]
    knot_rate = np.repeat(lines.rate, 2)[kept]
    inner = np.flatnonzero(np.diff(knot_group) == 0)
    knot_rate[inner] = np.diff(knot_ns)[inner] / np.diff(knot_cycles)[inner]
    first_knot = np.append(np.flatnonzero(np.diff(knot_group, prepend=-1)), len(knot_group))
    return _Knots(first_knot, place[kept], knot_cycles, knot_ns, knot_rate)


def _fit_lines(
    group: np.ndarray, cycles: np.ndarray, ns: np.ndarray, rates: np.ndarray, step_ns: float
) -> _Lines:
    """As few lines as it takes: what misses an anchor by more than readings scatter is halved until nothing does."""
    place = _place(group, cycles)
    begin = np.flatnonzero(np.diff(group, prepend=-1))
    end = np.append(begin[1:], len(group))
    accepted = []
    while len(begin):
        lines, missed_ns = _regressions(begin, end, cycles, ns, rates[group[begin]])
        is_split = (missed_ns > step_ns / 2 + _SCATTER_NS) & (cycles[end - 1] > cycles[begin])
        accepted.append((lines, ~is_split))
        begin, end = begin[is_split], end[is_split]
        middle = (place[begin] + place[end - 1] + 1) // 2
        middle_idx = np.searchsorted(place, middle)
        begin, end = np.concatenate([begin, middle_idx]), np.concatenate([middle_idx, end])
    names = ("begin", "end", "center", "ns", "rate")
    columns = [
        np.concatenate([getattr(lines, name)[kept] for lines, kept in accepted]) for name in names
    ]
    order = np.argsort(columns[0])
    return _Lines(*(column[order] for column in columns))


def _regressions(
    begin: np.ndarray, end: np.ndarray, cycles: np.ndarray, ns: np.ndarray, rates: np.ndarray
) -> tuple[_Lines, np.ndarray]:
    """Lines of least squares, of the given rates where pieces are short, and by how much each misses some anchor."""
    length = end - begin
    starts = np.cumsum(length) - length
    piece = np.repeat(np.arange(len(begin)), length)
    anchor = np.arange(len(piece)) + (begin - starts)[piece]
    center = np.add.reduceat(cycles[anchor], starts) / length
    mean_ns = np.add.reduceat(ns[anchor], starts) / length
    x, y = cycles[anchor] - center[piece], ns[anchor] - mean_ns[piece]
    square = np.add.reduceat(x * x, starts)
    slope = np.add.reduceat(x * y, starts) / np.maximum(square, 1.0)
    rate = np.where(ns[end - 1] - ns[begin] >= _MIN_BASELINE_NS, slope, rates)
    missed_ns = np.maximum.reduceat(np.abs(y - rate[piece] * x), starts)
    return _Lines(begin, end, center, mean_ns, rate), missed_ns
