"""Clock offsets from ping-pong rounds: the truth lies within the bound, whatever the link does."""

from __future__ import annotations

import numpy as np
import pytest

from kprof.clock import (
    OffsetSample,
    alignment_from_samples,
    offset_from_rounds,
    segments_from_samples,
    step_from_readings,
)
from kprof.errors import ClockError


def rounds(
    offset_ns: int,
    num_rounds: int,
    seed: int,
    *,
    there_ns: int = 700,
    back_ns: int = 700,
    noise_ns: int = 400,
) -> tuple[np.ndarray, np.ndarray]:
    """Ping-pong between two clocks that differ by `offset_ns`, over a link with one-sided noise."""
    random = np.random.default_rng(seed)
    t0 = np.cumsum(random.integers(2000, 4000, num_rounds)) + 10**9
    t1 = t0 + there_ns + random.exponential(noise_ns, num_rounds).astype(np.int64)
    t3 = t1 + back_ns + random.exponential(noise_ns, num_rounds).astype(np.int64)
    return np.stack([t0, t3], axis=1), t1 + offset_ns


@pytest.mark.parametrize("seed", range(50))
def test_truth_lies_within_the_bound(seed: int) -> None:
    offset = int(np.random.default_rng(seed).integers(-(10**7), 10**7))
    sample = offset_from_rounds(*rounds(offset, 200, seed), step_ns=1.0)
    assert abs(sample.offset_ns - offset) <= sample.bound_ns
    assert sample.bound_ns < 800


def test_an_asymmetric_link_widens_the_bound_instead_of_breaking_it() -> None:
    even = offset_from_rounds(*rounds(5000, 200, 1), step_ns=1.0)
    skewed = offset_from_rounds(*rounds(5000, 200, 1, there_ns=3000), step_ns=1.0)
    assert abs(skewed.offset_ns - 5000) > 1000
    assert abs(skewed.offset_ns - 5000) <= skewed.bound_ns
    assert skewed.bound_ns > even.bound_ns + 1000


def test_an_outlier_burst_does_not_matter() -> None:
    initiator, responder = rounds(1234, 200, 2)
    initiator[50:80, 1] += 500_000
    clean = offset_from_rounds(*rounds(1234, 200, 2), step_ns=1.0)
    sample = offset_from_rounds(initiator, responder, step_ns=1.0)
    assert sample.bound_ns <= clean.bound_ns * 1.5
    assert abs(sample.offset_ns - 1234) <= sample.bound_ns


def test_too_few_rounds_are_refused() -> None:
    initiator, responder = rounds(0, 20, 3)
    responder[5:] = 0
    with pytest.raises(ClockError, match="only 5 of 20 rounds"):
        offset_from_rounds(initiator, responder, step_ns=1.0)


def sample(local_ns: int, offset_ns: float, bound_ns: float = 10.0) -> OffsetSample:
    return OffsetSample(local_ns, offset_ns, bound_ns, 100, 1400.0)


def test_segments_interpolate_between_calibrations() -> None:
    segments = segments_from_samples([sample(1_000_000, 500.0), sample(2_000_000, 600.0)])
    assert len(segments) == 1
    assert segments[0].from_ns == 1_000_000
    assert segments[0].offset_ns == -500.0
    assert segments[0].drift_ppm == pytest.approx(-100.0)


def test_one_calibration_is_a_constant_offset() -> None:
    assert segments_from_samples([sample(7, 3.0)])[0].drift_ppm == 0.0


def test_drifting_drift_widens_the_bound() -> None:
    straight = alignment_from_samples(
        "m", 0, {1: [sample(0, 0.0), sample(1000, 10.0), sample(2000, 20.0)]}
    )
    bent = alignment_from_samples(
        "m", 0, {1: [sample(0, 0.0), sample(1000, 110.0), sample(2000, 20.0)]}
    )
    assert straight.bound_between_ns(0, 1) == 10.0
    assert bent.bound_between_ns(0, 1) == 110.0


def test_bounds_of_two_ranks_add_up() -> None:
    alignment = alignment_from_samples(
        "m", 0, {1: [sample(0, 0.0, 10.0)], 2: [sample(0, 0.0, 30.0)]}
    )
    assert alignment.bound_between_ns(1, 2) == 40.0
    assert alignment.bound_between_ns(2, 2) == 0.0


def test_step_is_the_smallest_difference() -> None:
    readings = np.array([5, 5, 9, 9, 9, 13, 21], dtype=np.uint64)
    assert step_from_readings(readings, 100e6) == 40.0
