"""Two clocks, one calibration: what a ping-pong says about their offset, and how sure that is.

Two ranks bounce a flag. Each notes its clock when it sees the flag, and again when it sends it
back. With offset = second clock - first clock, f = seen by the second - sent by the first (way
there) and g = seen by the first - sent by the second (way back):

    -g  <=  offset  <=  f                     (a flag is never seen before it was sent)

Every hop is such a limit, and the true offset obeys all of them, whatever the link does: that is
the *rigorous* interval. It is about a round trip wide, so we estimate within it:

    estimate   (f - g) / 2 of the shortest ways there and back, each from the lanes that have them
    spread     how far those lanes disagree, noise included

A way is short where the sender, the slice of the cache with the flag and the reader happen to be
close. On GPUs the two ways of a lane often differ by 100 ns, and a median over lanes keeps some of
that. But among enough lanes, each direction has some without delay, and the shortest round trips of
all pairs of GPUs agree within some 20 ns (benchmarks/results/clock_alignment.json).

One pair cannot show a delay that all shortest ways of a direction share; alignment.py says what is
assumed about it. A burst of slow rounds is not among the shortest ways and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import numpy as np

from kprof.errors import ClockError

Pair = tuple[int, int]

MIN_VALID_ROUNDS: Final = 8
# Two quartz clocks stay within 100 ppm of their nominal rate each.
MAX_DRIFT: Final = 200e-6
# How many of a lane's hops in one direction count: the shortest.
_SHORTEST_SHARE: Final = 0.1
# How many lanes count: those with the shortest ways in one direction.
_SHORTEST_LANES: Final = 1 / 8
# With fewer, a direction may have no lane with a short way, and nobody would know.
_ENOUGH_LANES: Final = 8


class OtherPath(msgspec.Struct, frozen=True):
    """The offset of two clocks by a path that a ping-pong does not take: at `local_ns` of the
    second, second - first was `offset_ns`.

    `bound_ns` is rigorous, `noise_ns` the standard error of the mean of rounds.
    """

    name: str
    local_ns: int
    offset_ns: float
    noise_ns: float
    bound_ns: float


class OffsetSample(msgspec.Struct, frozen=True):
    """One calibration of two ranks: at `local_ns` of the second, second - first was `offset_ns`.

    `lower_ns` and `upper_ns` are the rigorous limits, `spread_ns` how far the lanes of the estimate
    disagree, `step_ns` the clocks' step, `round_trip_ns` the sum of the estimate's two ways.
    """

    local_ns: int
    offset_ns: float
    spread_ns: float
    lower_ns: float
    upper_ns: float
    step_ns: float
    round_trip_ns: float
    num_rounds: int
    num_lanes: int = 1
    # Measured over memory that both ranks reach, or else through their hosts' clocks.
    is_direct: bool = True
    others: tuple[OtherPath, ...] = ()

    @property
    def has_shortest_ways(self) -> bool:
        """Whether the shortest ways can be compared with other pairs': enough lanes played."""
        return self.is_direct and self.num_lanes >= _ENOUGH_LANES

    @property
    def rigorous_bound_ns(self) -> float:
        """How far the true offset can be from the estimate, whatever the link does."""
        ends = (self.upper_ns - self.offset_ns, self.offset_ns - self.lower_ns)
        return max(0.0, *ends) + self.step_ns


def ticks_to_ns(ticks: np.ndarray, ticks_per_second: float) -> np.ndarray:
    """Int64 ticks to int64 ns; exact for whole ns per tick, as all real-time clocks have so far."""
    ns_per_tick = 1e9 / ticks_per_second
    if ns_per_tick == int(ns_per_tick):
        return ticks * int(ns_per_tick)
    return np.rint(ticks * ns_per_tick).astype(np.int64)


def sample_from_readings(
    first_ns: np.ndarray, second_ns: np.ndarray, step_ns: float
) -> OffsetSample:
    """Estimate second - first from the readings of a ping-pong that the first began.

    Both are (lanes, rounds, 2) int64 of (seen, sent); 0 means that it did not happen. Raises
    ClockError when fewer than 8 rounds are complete.
    """
    hops = _Hops.of(first_ns, second_ns)
    if len(hops.at_ns) < MIN_VALID_ROUNDS:
        raise ClockError(
            f"only {len(hops.at_ns)} of {first_ns[..., 0].size} rounds of the clock calibration "
            "came back; is a rank stuck?"
        )
    fastest_ns = int(hops.at_ns[np.argmin(hops.there_ns + hops.back_ns)])
    elapsed_ns = hops.at_ns - fastest_ns
    # The further from the fastest round, the longer a way counts. In games that were interrupted or
    # repeated the clocks drifted, and ways from different moments would add up to too short a trip.
    slack_ns = np.abs(elapsed_ns) * MAX_DRIFT
    there = _shortest_ways(hops.lane, hops.there_ns + slack_ns, elapsed_ns)
    back = _shortest_ways(hops.lane, hops.back_ns + slack_ns, elapsed_ns)
    local_ns = fastest_ns + round((there.elapsed_ns + back.elapsed_ns) / 2)
    # A limit holds at its own moment; the clocks may drift until the estimate's.
    slack_ns = np.abs(hops.at_ns - local_ns) * MAX_DRIFT
    limits = float((-hops.back_ns - slack_ns).max()), float((hops.there_ns + slack_ns).min())
    lower, upper = min(limits), max(limits)
    return OffsetSample(
        local_ns=local_ns,
        offset_ns=min(max((there.mean_ns - back.mean_ns) / 2, lower), upper),
        spread_ns=float(np.hypot(there.excess_ns, back.excess_ns)),
        lower_ns=lower,
        upper_ns=upper,
        step_ns=step_ns,
        round_trip_ns=there.mean_ns + back.mean_ns,
        num_rounds=len(hops.at_ns),
        num_lanes=len(first_ns),
    )


@dataclass(frozen=True)
class _Hops:
    """One entry per complete round: lane, moment on the second's clock, way there, way back."""

    lane: np.ndarray
    at_ns: np.ndarray
    there_ns: np.ndarray
    back_ns: np.ndarray

    @staticmethod
    def of(first_ns: np.ndarray, second_ns: np.ndarray) -> _Hops:
        sent, returned = first_ns[:, :-1, 1], first_ns[:, 1:, 0]
        seen, answered = second_ns[:, :-1, 0], second_ns[:, :-1, 1]
        is_complete = (sent != 0) & (seen != 0) & (returned != 0)
        lane, _ = np.nonzero(is_complete)
        return _Hops(
            lane,
            seen[is_complete],
            (seen - sent)[is_complete],
            (returned - answered)[is_complete],
        )


class _Ways(NamedTuple):
    """The shortest ways in one direction: mean, mean less minimum, mean time after the fastest."""

    mean_ns: float
    excess_ns: float
    elapsed_ns: float


def _shortest_ways(lane: np.ndarray, ways_ns: np.ndarray, elapsed_ns: np.ndarray) -> _Ways:
    order = np.lexsort((ways_ns, lane))
    _, first, count = np.unique(lane[order], return_index=True, return_counts=True)
    num_kept = np.maximum(1, (count * _SHORTEST_SHARE).astype(np.int64))
    place_in_lane = np.arange(len(order)) - np.repeat(first, count)
    kept = order[place_in_lane < np.repeat(num_kept, count)]
    lane_of_kept = np.repeat(np.arange(len(count)), num_kept)
    lanes_ns, lanes_elapsed_ns = (
        np.bincount(lane_of_kept, values[kept]) / num_kept for values in (ways_ns, elapsed_ns)
    )
    num_lanes = max(1, int(len(count) * _SHORTEST_LANES))
    shortest = np.argsort(lanes_ns, kind="stable")[:num_lanes]
    return _Ways(
        float(lanes_ns[shortest].mean()),
        float(lanes_ns[shortest].mean() - ways_ns.min()),
        float(lanes_elapsed_ns[shortest].mean()),
    )


def step_from_readings(readings_ticks: np.ndarray, ticks_per_second: float) -> float:
    """The clock's step in ns: the smallest difference between successive unequal readings."""
    differences = np.diff(readings_ticks.astype(np.int64))
    positive = differences[differences > 0]
    step_ticks = positive.min() if len(positive) else 1
    return float(step_ticks) * 1e9 / ticks_per_second
