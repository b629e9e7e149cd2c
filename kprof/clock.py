"""Clocks of several ranks on one: offsets from two-way ping-pong, with a bound that holds whatever the link does.

A round gives four readings: the initiator's t0 (before it sends) and t3 (after the answer), the responder's t1. The
responder read t1 between t0 and t3, so with offset = responder - initiator:

    t1 - t3  <=  offset  <=  t1 - t0

Every round is such an interval, and the true offset lies in all of them. Their intersection is the estimate (its
middle) and the bound (half its width): an outlier only gives a wide interval, an asymmetric link shifts t1 within
[t0, t3], and neither can break the bound. Drift during the calibration (2 ms at 100 ppm: 200 ns) is taken into
account by widening the intervals until they intersect.

Between two calibrations the offset is interpolated; before the first and after the last it is held on the nearest line.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from kprof.capture import Alignment, ClockSegment, RankAlignment
from kprof.errors import ClockError

DEFAULT_NUM_ROUNDS: Final = 300
MIN_VALID_ROUNDS: Final = 8


class OffsetSample(msgspec.Struct, frozen=True):
    """One calibration of one rank: at `local_ns` of its clock, its clock minus the reference's was `offset_ns`."""

    local_ns: int
    offset_ns: float
    bound_ns: float
    num_rounds: int
    min_round_trip_ns: float


def ticks_to_ns(ticks: np.ndarray, ticks_per_second: float) -> np.ndarray:
    """Int64 ticks to int64 ns; exact where a tick is a whole number of ns, as on all real-time clocks so far."""
    ns_per_tick = 1e9 / ticks_per_second
    if ns_per_tick == int(ns_per_tick):
        return ticks * int(ns_per_tick)
    return np.rint(ticks * ns_per_tick).astype(np.int64)


def offset_from_rounds(
    initiator_ns: np.ndarray, responder_ns: np.ndarray, step_ns: float
) -> OffsetSample:
    """Estimate responder - initiator from ping-pong rounds.

    `initiator_ns` is (N, 2) int64 of (t0, t3), `responder_ns` (N,) int64 of t1; rounds with zeros did not happen. The
    bound includes the clocks' step. Raises ClockError when fewer than 8 rounds are valid.
    """
    is_valid = (initiator_ns[:, 0] != 0) & (responder_ns != 0)
    t0, t3, t1 = initiator_ns[is_valid, 0], initiator_ns[is_valid, 1], responder_ns[is_valid]
    if len(t1) < MIN_VALID_ROUNDS:
        raise ClockError(
            f"only {len(t1)} of {len(responder_ns)} rounds of the clock calibration came back; is a rank stuck?"
        )
    lower, upper = int((t1 - t3).max()), int((t1 - t0).min())
    # Clocks that drift during the calibration can make the intersection empty: the bound then covers the gap.
    bound = abs(upper - lower) / 2 + step_ns
    return OffsetSample(
        local_ns=int(t1[len(t1) // 2]),
        offset_ns=(lower + upper) / 2,
        bound_ns=bound,
        num_rounds=len(t1),
        min_round_trip_ns=float((t3 - t0).min()),
    )


def segments_from_samples(samples: Sequence[OffsetSample]) -> tuple[ClockSegment, ...]:
    """Piecewise-linear correction through the calibrations of one rank, which are ordered by time."""
    if len(samples) == 1:
        return (ClockSegment(samples[0].local_ns, -samples[0].offset_ns),)
    segments = []
    for before, after in itertools.pairwise(samples):
        elapsed_ns = after.local_ns - before.local_ns
        drift = (after.offset_ns - before.offset_ns) / elapsed_ns if elapsed_ns > 0 else 0.0
        segments.append(ClockSegment(before.local_ns, -before.offset_ns, -drift * 1e6))
    return tuple(segments)


def alignment_from_samples(
    method: str, reference_rank: int, samples_by_rank: dict[int, list[OffsetSample]]
) -> Alignment:
    """The alignment of all ranks to the reference rank, which has no samples of its own."""
    ranks = [RankAlignment(reference_rank, (ClockSegment(0, 0.0),), 0.0)]
    num_rounds = 0
    for rank, samples in sorted(samples_by_rank.items()):
        num_rounds = max(num_rounds, max(sample.num_rounds for sample in samples))
        bound = max(sample.bound_ns for sample in samples) + _curvature_ns(samples)
        ranks.append(RankAlignment(rank, segments_from_samples(samples), bound))
    return Alignment(
        method, reference_rank, tuple(sorted(ranks, key=lambda entry: entry.rank)), num_rounds
    )


def _curvature_ns(samples: Sequence[OffsetSample]) -> float:
    """How far a calibration lies off the line through its neighbours: what interpolation may be wrong by."""
    worst = 0.0
    for before, middle, after in zip(samples, samples[1:], samples[2:], strict=False):
        fraction = (middle.local_ns - before.local_ns) / max(after.local_ns - before.local_ns, 1)
        on_line = before.offset_ns + fraction * (after.offset_ns - before.offset_ns)
        worst = max(worst, abs(middle.offset_ns - on_line))
    return worst


def step_from_readings(readings_ticks: np.ndarray, ticks_per_second: float) -> float:
    """The clock's step in ns: the smallest difference between successive readings that differ."""
    differences = np.diff(readings_ticks.astype(np.int64))
    positive = differences[differences > 0]
    return (
        float(positive.min()) * 1e9 / ticks_per_second if len(positive) else 1e9 / ticks_per_second
    )
