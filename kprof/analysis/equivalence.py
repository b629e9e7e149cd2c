"""Two samples of times: longer, shorter, the same, or unclear.

    measure      mean, median and 95th percentile of the samples; the share of slow ones
    changed      the 95 % interval of the difference excludes 0, and the difference exceeds the
                 noise floor
    same         the 90 % interval is within the margin on both sides (two one-sided tests at 5 %):
                 finding no difference does not prove that there is none
    unclear      neither, and always with fewer than MIN_SAMPLES a side, which have no interval

Two sides of one and the same data need no test: they do not differ.

Intervals of times are bootstrapped, and widened for few samples like Student's t. Intervals of
shares are Newcombe's, from two Wilson intervals (Statistics in Medicine 17, 1998).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Chance alone separates two sides of three samples in one of ten comparisons, two sides of four in
# one of 35.
MIN_SAMPLES: Final = 4
# With fewer, the 95th percentile is the largest sample, and a single slow sample makes a large
# share.
MIN_FOR_TAILS: Final = 20
# A sample is slow if it takes this many times the median of the base.
SLOW_RATIO: Final = 1.5
# A change below the first share of the base is noise, whatever the interval; up to the second,
# sides are the same.
NOISE_SHARE: Final = 0.02
MARGIN_SHARE: Final = 0.05
# The same for shares of slow samples, in parts of all samples.
SLOW_NOISE: Final = 0.02
SLOW_MARGIN: Final = 0.10
_RESAMPLES: Final = 2000
# More samples than this are not drawn one by one.
_MOST_DRAWN: Final = 2000
_SEED: Final = 20_260_101
_Z95, _Z90 = 1.960, 1.645


class Measure(str, Enum):
    """A measure of two samples."""

    MEAN = "mean"
    MEDIAN = "median"
    P95 = "p95"
    SLOW = "slow share"


_SHARES: Final = {Measure.MEDIAN: 0.5, Measure.P95: 0.95}


@dataclass(frozen=True)
class Comparison:
    """One measure of both sides. Times in ns, or shares of samples.

    The 95 % interval is NaN for too few samples.
    """

    measure: Measure
    verdict: str
    base: float
    candidate: float
    low: float
    high: float
    margin: float


def compare(
    base: Floats, candidate: Floats, floor_ns: float, *, is_same_data: bool = False
) -> list[Comparison]:
    """Compare all measures that there are enough samples for. A difference below `floor_ns` is no
    change; of the same data it is 0, with the interval 0 to 0, however few samples there are."""
    measures = [Measure.MEAN, Measure.MEDIAN]
    if min(len(base), len(candidate)) >= MIN_FOR_TAILS:
        measures += [Measure.P95, Measure.SLOW]
    found = [_compare(measure, base, candidate, floor_ns) for measure in measures]
    return (
        [replace(one, verdict="same", low=0.0, high=0.0) for one in found]
        if is_same_data
        else found
    )


def _compare(measure: Measure, base: Floats, candidate: Floats, floor_ns: float) -> Comparison:
    limit = SLOW_RATIO * float(np.median(base))
    before, after = _value(measure, base, limit), _value(measure, candidate, limit)
    if measure is Measure.SLOW:
        noise, margin = SLOW_NOISE, SLOW_MARGIN
    else:
        noise = max(NOISE_SHARE * before, floor_ns)
        margin = max(MARGIN_SHARE * before, floor_ns)
    if min(len(base), len(candidate)) < MIN_SAMPLES:
        return Comparison(measure, "unclear", before, after, np.nan, np.nan, margin)
    (low, high), (inner_low, inner_high) = _intervals(measure, base, candidate, limit)
    verdict = "unclear"
    if -margin <= inner_low and inner_high <= margin:
        verdict = "same"
    if abs(after - before) > noise and not low <= 0 <= high:
        verdict = "slower" if after > before else "faster"
    return Comparison(measure, verdict, before, after, low, high, margin)


def _value(measure: Measure, samples: Floats, limit: float) -> float:
    if measure is Measure.SLOW:
        return float((samples > limit).mean())
    return float(_times(measure, samples[None, :])[0])


def _times(measure: Measure, rows: Floats) -> Floats:
    if measure is Measure.MEAN:
        return rows.mean(axis=1)
    return np.quantile(rows, _SHARES[measure], axis=1)


def _intervals(
    measure: Measure, base: Floats, candidate: Floats, limit: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The 95 % and the 90 % intervals of the difference."""
    if measure is Measure.SLOW:
        wide, narrow = (_of_shares(base > limit, candidate > limit, z) for z in (_Z95, _Z90))
        return wide, narrow
    random = np.random.default_rng(_SEED)

    def drawn(samples: Floats) -> Floats:
        count = len(samples)
        if count > _MOST_DRAWN:
            return _drawn_of_many(measure, np.sort(samples), random)
        rows = samples[random.integers(0, count, (_RESAMPLES, count))]
        return _times(measure, rows)

    differences = drawn(candidate) - drawn(base)
    middle = _value(measure, candidate, limit) - _value(measure, base, limit)
    count = min(len(base), len(candidate))

    def interval(part: float, z: float) -> tuple[float, float]:
        low, high = np.quantile(differences, [part / 2, 1 - part / 2])
        factor = _like_student(z, count - 1) * np.sqrt(count / (count - 1))
        return middle + factor * (float(low) - middle), middle + factor * (float(high) - middle)

    return interval(0.05, _Z95), interval(0.10, _Z90)


def _drawn_of_many(measure: Measure, ranked: Floats, random: np.random.Generator) -> Floats:
    """The same of thousands of samples, in ascending order, without gigabytes of them: their mean
    is normal, and of uniform numbers the n-th smallest is beta."""
    count = len(ranked)
    if measure is Measure.MEAN:
        return random.normal(ranked.mean(), ranked.std() / np.sqrt(count), _RESAMPLES)
    below = round(_SHARES[measure] * (count - 1))
    at = random.beta(below + 1, count - below, _RESAMPLES)
    return ranked[(at * count).astype(np.int64)]


def _like_student(z: float, freedom: int) -> float:
    """The ratio of Student's quantile to the normal one (Cornish and Fisher's series)."""
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return 1 + (first + second) / z


def _of_shares(
    base: NDArray[np.bool_], candidate: NDArray[np.bool_], z: float
) -> tuple[float, float]:
    before, after = float(base.mean()), float(candidate.mean())
    (low_before, high_before), (low_after, high_after) = _wilson(base, z), _wilson(candidate, z)
    below = np.hypot(after - low_after, high_before - before)
    above = np.hypot(high_after - after, before - low_before)
    return after - before - float(below), after - before + float(above)


def _wilson(chosen: NDArray[np.bool_], z: float) -> tuple[float, float]:
    count, share = len(chosen), float(chosen.mean())
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = (
        z
        / (1 + z * z / count)
        * float(np.sqrt(share * (1 - share) / count + z * z / (4 * count * count)))
    )
    return middle - half, middle + half
