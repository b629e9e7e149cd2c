"""Two clocks, one calibration: what a ping-pong says about their offset, and how sure that is.

Two ranks bounce a flag; each notes its clock when it sees the flag, and again when it sends it back. With offset =
second - first clock, f = seen by the second - sent by the first (way there), g = seen by the first - sent by the second
(way back):

    -g  <=  offset  <=  f                                       (a flag is never seen before it was sent)

Every hop is such a limit and the true offset obeys all of them: that is the *rigorous* interval, whatever the link
does. Its width is about a round trip, so what follows estimates within it:

    estimate   (f - g) / 2 from the shortest ways there and the shortest ways back of a lane, the median of the lanes
    spread     twice the deviation of the lanes from their median: their ways differ (processor, cache slice, link), so
               this is what differences between the two directions of a way do to the estimate, noise included

What both directions of *all* lanes have in common cannot be seen from one pair; kprof.alignment says what is assumed
about it. A burst of slow rounds is not among the shortest ways and changes nothing.
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
# Of a lane's hops in one direction, the shortest.
_SHORTEST_SHARE: Final = 0.1
# A lane whose round trip is longer than the shortest lane's by more than this did not run undisturbed.
_GOOD_LANE: Final = 1.5
# A lane that is alone (or nearly) is cut into pieces, so that there is something to disagree with.
_MIN_LANES: Final = 4


class OffsetSample(msgspec.Struct, frozen=True):
    """One calibration of a pair of ranks: at `local_ns` of the second's clock, second - first was about `offset_ns`.

    `lower_ns` and `upper_ns` are the rigorous limits, `spread_ns` the disagreement of the lanes, `step_ns` the clocks'
    step, `round_trip_ns` the sum of the two ways behind the estimate.
    """

    local_ns: int
    offset_ns: float
    spread_ns: float
    lower_ns: float
    upper_ns: float
    step_ns: float
    round_trip_ns: float
    num_rounds: int
    # Over memory that both ranks reach, or by way of their hosts' clocks.
    is_direct: bool = True

    @property
    def rigorous_bound_ns(self) -> float:
        """How far the true offset can be from the estimate, whatever the link does."""
        ends = (self.upper_ns - self.offset_ns, self.offset_ns - self.lower_ns)
        return max(0.0, *ends) + self.step_ns


def ticks_to_ns(ticks: np.ndarray, ticks_per_second: float) -> np.ndarray:
    """Int64 ticks to int64 ns; exact where a tick is a whole number of ns, as on all real-time clocks so far."""
    ns_per_tick = 1e9 / ticks_per_second
    if ns_per_tick == int(ns_per_tick):
        return ticks * int(ns_per_tick)
    return np.rint(ticks * ns_per_tick).astype(np.int64)


def sample_from_readings(
    first_ns: np.ndarray, second_ns: np.ndarray, step_ns: float
) -> OffsetSample:
    """Estimate second - first from the readings of a ping-pong that the first began.

    Both are (lanes, rounds, 2) int64 of (seen, sent); readings of zero did not happen. Raises ClockError when fewer
    than 8 rounds are complete.
    """
    hops = _Hops.of(first_ns, second_ns)
    if len(hops.at_ns) < MIN_VALID_ROUNDS:
        raise ClockError(
            f"only {len(hops.at_ns)} of {first_ns[..., 0].size} rounds of the clock calibration came back; "
            "is a rank stuck?"
        )
    estimate = _estimate(hops)
    # Limits hold at their own moment; until the estimate's the clocks may have drifted apart.
    slack_ns = np.abs(hops.at_ns - estimate.local_ns) * MAX_DRIFT
    limits = float((-hops.back_ns - slack_ns).max()), float((hops.there_ns + slack_ns).min())
    lower, upper = min(limits), max(limits)
    return OffsetSample(
        local_ns=estimate.local_ns,
        offset_ns=min(max(estimate.offset_ns, lower), upper),
        spread_ns=estimate.spread_ns,
        lower_ns=lower,
        upper_ns=upper,
        step_ns=step_ns,
        round_trip_ns=estimate.round_trip_ns,
        num_rounds=len(hops.at_ns),
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
        lane, idx = np.nonzero(is_complete)
        num_pieces = -(-_MIN_LANES // len(first_ns))
        return _Hops(
            lane * num_pieces + idx * num_pieces // sent.shape[1],
            seen[is_complete],
            (seen - sent)[is_complete],
            (returned - answered)[is_complete],
        )


class _Estimate(NamedTuple):
    local_ns: int
    offset_ns: float
    spread_ns: float
    round_trip_ns: float


def _estimate(hops: _Hops) -> _Estimate:
    """The shortest ways of each lane, the median over the lanes."""
    lanes = [_lane(hops, np.flatnonzero(hops.lane == lane)) for lane in np.unique(hops.lane)]
    fastest = min(lanes, key=lambda lane: lane.round_trip_ns)
    limit_ns = fastest.round_trip_ns * _GOOD_LANE
    # Games that were played again may lie so far apart that the clocks drift by more than a round trip.
    good = [
        lane
        for lane in lanes
        if lane.round_trip_ns <= limit_ns
        and abs(lane.local_ns - fastest.local_ns) * MAX_DRIFT <= limit_ns
    ]
    offsets = np.array([lane.offset_ns for lane in good])
    middle = float(np.median(offsets))
    return _Estimate(
        fastest.local_ns + round(np.mean([lane.local_ns - fastest.local_ns for lane in good])),
        middle,
        2 * float(np.sqrt(np.mean((offsets - middle) ** 2))),
        float(np.median([lane.round_trip_ns for lane in good])),
    )


def _lane(hops: _Hops, rounds: np.ndarray) -> _Estimate:
    there_ns, back_ns, at_ns = hops.there_ns[rounds], hops.back_ns[rounds], hops.at_ns[rounds]
    fastest_ns = at_ns[np.argmin(there_ns + back_ns)]
    # A lane that was interrupted saw its clocks drift apart: ways count as longer, the further they are from the
    # fastest round, so that a way there and a way back from different moments do not make a round trip of nothing.
    slack_ns = np.abs(at_ns - fastest_ns) * MAX_DRIFT
    there, back = (_shortest(ways_ns + slack_ns) for ways_ns in (there_ns, back_ns))
    there_mean_ns = float((there_ns + slack_ns)[there].mean())
    back_mean_ns = float((back_ns + slack_ns)[back].mean())
    elapsed_ns = (at_ns[np.concatenate([there, back])] - fastest_ns).mean()
    return _Estimate(
        int(fastest_ns) + round(elapsed_ns),
        (there_mean_ns - back_mean_ns) / 2,
        0.0,
        there_mean_ns + back_mean_ns,
    )


def _shortest(ways_ns: np.ndarray) -> np.ndarray:
    count = max(1, int(len(ways_ns) * _SHORTEST_SHARE))
    shortest: np.ndarray = np.argsort(ways_ns, kind="stable")[:count]
    return shortest


def step_from_readings(readings_ticks: np.ndarray, ticks_per_second: float) -> float:
    """The clock's step in ns: the smallest difference between successive readings that differ."""
    differences = np.diff(readings_ticks.astype(np.int64))
    positive = differences[differences > 0]
    return (
        float(positive.min()) * 1e9 / ticks_per_second if len(positive) else 1e9 / ticks_per_second
    )
