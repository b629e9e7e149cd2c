"""Cycles to nanoseconds: a processor's cycle counter on the real-time clock of its device.

A cycle counter has a fine step (0.5 ns where NVIDIA's real-time clock has 32 ns), but every processor has its own and
its rate changes with the frequency. Chunk headers, and the last record of a track, hold both clocks at one moment: an
anchor. Anchors of one launch on one processor (SM, CU) make one piecewise linear map:

    real time |                  . o        o  knots, one for each window of time: the middle of the band that
              |            . o              .  all anchors of the window leave for a line of the launch's rate
              |      . o
              |. o__________________ cycles

A reading of the real-time clock is up to one step early, never late: the true moment lies in [reading, reading + step).
That is the band; several anchors narrow it. `error_ns` is how far any anchor lies from the line: the bound that is
stated, measured on every flush rather than assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

# Over less time than this a launch's common rate is better than a processor's own: on an H200 groups of SMs differ by
# 0.03 %, which is one step of 32 ns in 100 us.
_MIN_BASELINE_NS: Final = 100_000.0
# Many anchors make a knot good to a few ns, if the rate held. Where their band is empty it did not: then windows of
# this fraction.
_WINDOW_NS: Final = 500_000.0
_NARROW_WINDOW_NS: Final = 50_000.0
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


def _knots(
    group: np.ndarray,
    cycles: np.ndarray,
    ns: np.ndarray,
    rates: np.ndarray,
    step_ns: float,
) -> _Knots:
    lead_ns = ns - rates[group] * cycles
    wide = _first_of_windows(group, (ns // _WINDOW_NS).astype(np.int64))
    low, high = _bands(lead_ns, wide, step_ns)
    is_empty = np.repeat(low > high, np.diff(wide, append=len(ns)))
    width_ns = np.where(is_empty, _NARROW_WINDOW_NS, _WINDOW_NS)
    first = _first_of_windows(group, (ns // width_ns).astype(np.int64))
    low, high = _bands(lead_ns, first, step_ns)
    last = np.append(first[1:], len(cycles)) - 1
    knot_group = group[first]
    knot_cycles = (cycles[first] + cycles[last]) / 2
    knot_ns = (low + high) / 2 + rates[knot_group] * knot_cycles
    first_knot = np.append(np.flatnonzero(np.diff(knot_group, prepend=-1)), len(first))
    knot_rate = rates[knot_group]
    inner = np.flatnonzero(np.diff(knot_group) == 0)
    knot_rate[inner] = np.diff(knot_ns)[inner] / np.diff(knot_cycles)[inner]
    return _Knots(first_knot, _place(knot_group, knot_cycles), knot_cycles, knot_ns, knot_rate)


def _first_of_windows(group: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Where a new window of a group begins."""
    is_first = np.diff(group, prepend=-1) != 0
    is_first[1:] |= np.diff(window) != 0
    return np.flatnonzero(is_first)


def _bands(lead_ns: np.ndarray, first: np.ndarray, step_ns: float) -> tuple[np.ndarray, np.ndarray]:
    """What the anchors of each window leave for the line: a reading is up to one step early, never late."""
    low = np.maximum.reduceat(lead_ns, first)
    return low, np.minimum.reduceat(lead_ns, first) + step_ns
