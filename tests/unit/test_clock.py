"""One calibration of two clocks: the truth lies within the rigorous limits, and close to the estimate."""

from __future__ import annotations

import numpy as np
import pytest
from clock_world import START_NS, Clock, Link, World, random_clocks

from kprof.clocks.offset import OffsetSample, sample_from_readings, step_from_readings, ticks_to_ns
from kprof.errors import ClockError


def truth_ns(world: World, sample: OffsetSample) -> float:
    """Second - first when the second's clock shows the sample's moment, by bisection over true time."""
    low, high = START_NS - 10**9, START_NS + 10**11
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (middle + 1, high)
            if int(world.clocks[1].read(middle)) < sample.local_ns
            else (low, middle)
        )
    first, second = (int(clock.read(low)) for clock in world.clocks)
    return second - first


def play(world: World) -> OffsetSample:
    return world.play((0, 1), START_NS)


@pytest.mark.parametrize("seed", range(50))
def test_truth_lies_within_the_rigorous_bound(seed: int) -> None:
    world = World(random_clocks(seed, 2), seed)
    sample = play(world)
    assert abs(sample.offset_ns - truth_ns(world, sample)) <= sample.rigorous_bound_ns
    assert sample.rigorous_bound_ns < 800


@pytest.mark.parametrize("step_ns", [1, 10, 32, 40])
def test_on_an_even_link_the_estimate_is_far_better_than_the_rigorous_bound(step_ns: int) -> None:
    worlds = [World(random_clocks(seed, 2, step_ns), seed) for seed in range(20)]
    samples = [play(world) for world in worlds]
    errors = [
        abs(sample.offset_ns - truth_ns(world, sample))
        for world, sample in zip(worlds, samples, strict=True)
    ]
    assert max(errors) <= 10 + step_ns
    # The truth is read off clocks with steps, too.
    assert all(
        error <= np.hypot(sample.spread_ns, sample.step_ns) + step_ns
        for error, sample in zip(errors, samples, strict=True)
    )


def test_an_asymmetric_link_stays_within_the_rigorous_bound() -> None:
    even = play(World([Clock(), Clock(5000)], 1))
    world = World([Clock(), Clock(5000)], 1, {(0, 1): Link(there_ns=3000)})
    skewed = play(world)
    assert abs(skewed.offset_ns - 5000) > 1000
    assert abs(skewed.offset_ns - 5000) <= skewed.rigorous_bound_ns
    assert skewed.rigorous_bound_ns > even.rigorous_bound_ns + 1000
    assert skewed.round_trip_ns > even.round_trip_ns + 2000


def test_a_burst_of_slow_rounds_does_not_matter() -> None:
    clean = play(World([Clock(), Clock(1234)], 2))
    burst = play(World([Clock(), Clock(1234)], 2, {(0, 1): Link(burst=(10, 40))}))
    assert abs(burst.offset_ns - 1234) < 30
    assert burst.spread_ns < clean.spread_ns + 30
    assert burst.rigorous_bound_ns < clean.rigorous_bound_ns + 150


def test_lanes_with_a_longer_way_in_one_direction_do_not_matter() -> None:
    """Half of the lanes cross the cache on the way there, the other half on the way back."""
    clean = play(World([Clock(), Clock(1234)], 3, lanes=32))
    first, second = World([Clock(), Clock(1234)], 3, lanes=32).readings((0, 1), START_NS)
    first[16:, 1:, 0] += 200
    second[:16, :, 0] += 200
    mixed = sample_from_readings(first, second, 1.0)
    assert abs(mixed.offset_ns - 1234) < 10
    assert mixed.round_trip_ns < clean.round_trip_ns + 20
    assert mixed.rigorous_bound_ns < clean.rigorous_bound_ns + 20


def test_one_way_that_is_much_shorter_than_the_rest_widens_the_spread() -> None:
    first, second = World([Clock(), Clock()], 3, lanes=32).readings((0, 1), START_NS)
    agreeing = sample_from_readings(first, second, 1.0)
    second[5, :, 0] -= 300
    split = sample_from_readings(first, second, 1.0)
    assert agreeing.spread_ns < 30
    assert split.spread_ns >= 150


def test_games_far_apart_leave_the_moment_with_the_fastest() -> None:
    """Two games half a second apart at 100 ppm: the offset moved by 50 us, more than the link could explain."""
    world = World([Clock(), Clock(0, 1e-4)], 5, lanes=1)
    slow = World([Clock(), Clock(0, 1e-4)], 5, {(0, 1): Link(5000, 5000)}, lanes=1)
    games = (slow.readings((0, 1), START_NS), world.readings((0, 1), START_NS + 500_000_000))
    first, second = (np.concatenate(side) for side in zip(*games, strict=True))
    sample = sample_from_readings(first, second, 1.0)
    assert abs(sample.offset_ns - truth_ns(world, sample)) <= 100
    assert sample.rigorous_bound_ns < 800


def test_too_few_rounds_are_refused() -> None:
    first, second = World([Clock(), Clock()], 6, lanes=1, rounds=20).readings((0, 1), START_NS)
    second[:, 5:] = 0
    with pytest.raises(ClockError, match="only 5 of 20 rounds"):
        sample_from_readings(first, second, 1.0)


def test_step_is_the_smallest_difference() -> None:
    readings = np.array([5, 5, 9, 9, 9, 13, 21], dtype=np.uint64)
    assert step_from_readings(readings, 100e6) == 40.0


def test_ticks_become_whole_nanoseconds() -> None:
    ticks = np.array([3, 1 << 50], dtype=np.int64)
    assert ticks_to_ns(ticks, 100e6).tolist() == [30, 10 << 50]
