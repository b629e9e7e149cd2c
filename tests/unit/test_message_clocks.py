"""Clocks from what happened before what, in worlds where the truth is known."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from benchmarks.message_clocks import CLASSES
from kprof.capture.manifest import Alignment
from kprof.clocks.causality import align_by_limits
from kprof.clocks.differences import close, contradiction, middle
from kprof.clocks.floors import estimate
from kprof.clocks.hulls import highest_at
from kprof.clocks.limits import ContradictionError, Limits, RankClock
from kprof.clocks.margins import Near, keep_away
from kprof.errors import ClockError
from message_world import Clock, World, both_ways


def world_of(name: str, seed: int) -> World:
    return CLASSES[name](np.random.default_rng([33, list(CLASSES).index(name), seed]))


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_the_truth_is_within_the_bound_of_every_pair(name: str) -> None:
    for seed in range(3):
        world = world_of(name, seed)
        alignment = align_by_limits(world.limits, world.rank_clocks(), "test")
        assert len(alignment.ranks) == world.num_ranks
        for pair, error in world.errors_ns(alignment).items():
            assert 0 < error <= alignment.bound_between_ns(*pair) < 120_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["even", "bursts", "collective"])
def test_messages_joined_with_each_others_ends_are_refused_by_name(name: str) -> None:
    for seed in range(3):
        world = world_of(name, seed)
        align_by_limits(world.limits, world.rank_clocks(), "sound")
        planted = world.exchange(0, 1e6)
        with pytest.raises(ContradictionError) as caught:
            align_by_limits(world.limits, world.rank_clocks(), "wrong")
        assert planted in caught.value.numbers
        assert {0, 1} <= {*caught.value.ranks}
        # Joined a millisecond apart.
        assert caught.value.by_ns > 5e5


def test_a_slow_direction_moves_the_estimate_and_not_the_bound_past_the_truth() -> None:
    world = World(np.random.default_rng(4), length_ns=1e9)
    both_ways(world, lambda side, at: np.full(len(at), (2e3, 22e3)[side]), 300)
    alignment = align_by_limits(world.limits, world.rank_clocks(), "test")
    (error,) = world.errors_ns(alignment).values()
    assert error == pytest.approx(10e3, rel=0.1)
    assert alignment.bound_between_ns(0, 1) == pytest.approx(12e3, rel=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_messages_that_are_hardly_ever_fast_have_the_drift_all_the_same(seed: int) -> None:
    """As between hosts whose ranks wait for cores: one way is fast in a few moments only, the way back in others."""
    world = World(np.random.default_rng([11, seed]), length_ns=1.2e10)
    fast_s = ((2.2, 6.1, 7.4, 10.4), (0.2, 1.7, 4.0))

    def delay_ns(side: int, at: np.ndarray) -> np.ndarray:
        is_fast = np.zeros(len(at), np.bool_)
        for begin_s in fast_s[side]:
            is_fast |= np.abs(at / 1e9 - begin_s) < 0.02
        slow_ns = 28e3 + world.draw.exponential(5e3, len(at))
        return np.where(is_fast, 8e3 + world.draw.exponential(3e2, len(at)), slow_ns)

    both_ways(world, delay_ns, 8000)
    alignment = align_by_limits(world.limits, world.rank_clocks(), "test")
    (error,) = world.errors_ns(alignment).values()
    assert error < 1000
    assert error <= alignment.bound_between_ns(0, 1) < 40_000


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_a_direction_that_falls_silent_does_not_pull_the_estimate(seed: int) -> None:
    """What is known at the end of its silence is a limit with more room, and no tighter than its messages."""
    world = world_of("part", seed)
    alignment = align_by_limits(world.limits, world.rank_clocks(), "test")
    (error,) = world.errors_ns(alignment).values()
    assert error < 300


def test_an_estimate_that_would_break_a_limit_goes_no_further() -> None:
    """Four floors are level, but the first message and the last one back are met by a steep line only."""
    knot, later = np.zeros(8, np.intp), np.array([0.1, 0.3, 0.5, 0.7, 0.9, 0.1, 0.5, 0.9])
    before = np.array([0, 0, 0, 0, 0, 1, 1, 1])
    most = np.array([100.0, 500.0, 500.0, 500.0, 500.0, 900.0, 900.0, -450.0])
    near = Near(before, 1 - before, knot, later, most, np.full(8, 2000.0))
    begun = np.array([[0.0, 50.0], [0.0, 500.0]])
    away, lines = keep_away(near, begun), estimate(near, begun, 1.0)
    assert abs(near.margins(lines).min()) < 1e-9 < near.margins(away).min()
    assert abs(np.ptp(lines[:, 1])) < abs(np.ptp(away[:, 1]))


def test_a_limit_that_many_others_outweigh_is_met() -> None:
    before = np.array([0] + [1] * 100)
    most = np.array([10.0] + [-9.0] * 100)
    knot, later = np.zeros(101, np.intp), np.full(101, 0.5)
    near = Near(before, 1 - before, knot, later, most, np.full(101, 10.0))
    assert near.margins(keep_away(near, np.zeros((2, 2)))).min() >= 0


@pytest.mark.slow
def test_wide_bounds_are_no_contradiction() -> None:
    """Their middle drifted by more than clocks do, and was taken for how they drift."""
    world = World(np.random.default_rng(0), num_ranks=32, length_ns=1e9)
    for pair in itertools.permutations(range(32), 2):
        delay_ns = 2e3 + world.draw.lognormal(np.log(3e5), 2.5, 6)
        world.send(*pair, world.moments(6), delay_ns)
    alignment = align_by_limits(world.limits, world.rank_clocks(), "test")
    for pair, error in world.errors_ns(alignment).items():
        assert error <= alignment.bound_between_ns(*pair)
    assert least_time_ns(world, alignment) > -world.step_ns - 2


def test_a_rank_without_a_way_back_is_left_out() -> None:
    world = World(np.random.default_rng(5), num_ranks=4, length_ns=1e9)
    for pair in [(1, 2), (2, 1), (1, 3), (0, 3)]:
        at = world.moments(100)
        world.send(*pair, at, np.full(100, 4e3))
    alignment = align_by_limits(world.limits, world.rank_clocks(), "test")
    assert [entry.rank for entry in alignment.ranks] == [1, 2]
    assert alignment.reference_rank == 1


def test_nothing_both_ways_is_one_sentence() -> None:
    world = World(np.random.default_rng(6), length_ns=1e9)
    world.send(0, 1, world.moments(50), np.full(50, 4e3))
    with pytest.raises(ClockError, match="no two ranks bound each other"):
        align_by_limits(world.limits, world.rank_clocks(), "test")


def test_too_many_ranks_are_one_sentence() -> None:
    clocks = {rank: RankClock(0, 10, 1.0) for rank in range(3000)}
    with pytest.raises(ClockError, match="3,000 ranks are more than the 2,048"):
        align_by_limits([], clocks, "test")


def test_long_recordings_have_lines_that_meet() -> None:
    world = World(np.random.default_rng(7), length_ns=3.5e10)
    world.clocks = [Clock(7e12, 0.0), Clock(7e12 + 3e8, 4e-5, 200.0, 3.5e10)]
    both_ways(world, lambda _, at: 3e3 + world.draw.exponential(5e3, len(at)), 8000)
    alignment = align_by_limits(world.limits, world.rank_clocks(), "test")
    (error,) = world.errors_ns(alignment).values()
    assert error <= alignment.bound_between_ns(0, 1) < 6_000
    segments = alignment.ranks[1].segments
    assert len(segments) == 4
    for before, after in itertools.pairwise(segments):
        at_end = before.offset_ns + before.drift_ppm * 1e-6 * (after.from_ns - before.from_ns)
        assert at_end == pytest.approx(after.offset_ns, abs=2)


def test_no_message_is_seen_before_it_was_sent() -> None:
    for name in ("even", "bursts", "ring", "collective"):
        world = world_of(name, 9)
        alignment = align_by_limits(world.limits, world.rank_clocks(), "test")
        # Up to the clocks' own step.
        assert least_time_ns(world, alignment) > -world.step_ns - 2


def least_time_ns(world: World, alignment: Alignment) -> float:
    """Of all messages, on the aligned clocks."""
    correct = {entry.rank: entry.correction_ns for entry in alignment.ranks}
    return min(
        int(seen - sent) + correct[each.after](int(seen)) - correct[each.before](int(sent))
        for each in world.limits
        for sent, seen in zip(each.sent_ns, each.seen_ns, strict=True)
    )


def test_the_highest_line_touches_a_point_above_and_one_below() -> None:
    upper = np.array([1.0, 5.0]), np.array([2.0, 2.0])
    lower = np.array([3.0]), np.array([1.0])
    # Through (1, 2) and (3, 1).
    assert highest_at(0.0, upper, lower, 10.0) == (2.5, 0)
    none = np.zeros(0), np.zeros(0)
    assert highest_at(0.0, upper, none, 0.25) == (2.25, 0)
    assert highest_at(0.0, none, lower, 1.0)[0] == np.inf


def test_differences_close_over_cycles() -> None:
    limits = np.full((3, 3), np.inf)
    limits[0, 1], limits[1, 2], limits[2, 0] = 10.0, 20.0, -15.0
    closed = close(limits)
    assert closed[1, 0] == 5.0
    assert middle(closed).tolist() == [0.0, 2.5, 22.5]
    assert contradiction(limits) == []
    limits[2, 0] = -31.0
    assert sorted(contradiction(limits)) == [0, 1, 2]


def test_a_limit_that_is_repeated_or_far_away_changes_nothing() -> None:
    """Hulls are looked for in pieces; points at one moment and a single point have hulls, too."""
    sent = np.array([0, 0, 10**9, 10**9, 9 * 10**9])
    seen = sent + np.array([7, 3, 5, 5, 4])
    limits = Limits(0, 1, sent, seen, np.arange(5))
    kept = limits.binding({0: RankClock(0, 10**10, 1.0)})
    assert kept.number.tolist() == [1, 2, 4]
    assert dataclasses.replace(limits, number=limits.number).binding(
        {0: RankClock(0, 1, 1.0)}
    ).number.tolist() == [1, 2, 4]
