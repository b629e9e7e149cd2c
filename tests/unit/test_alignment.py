"""All ranks on one clock, in worlds where the truth is known: it lies within the stated bound of every pair."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path

import numpy as np
import pytest
from clock_world import START_NS, Clock, Link, World, pairs_of, random_clocks, star_of

from kprof.capture.manifest import Alignment
from kprof.clocks.alignment import Calibration, align_clocks
from kprof.clocks.offset import OffsetSample, Pair
from kprof.clocks.path import Outside, curvature_prior_ns

SECOND = 10**9


def calibrations(world: World, pairs: list[Pair], num: int = 4, gap_s: float = 2) -> list:
    return [world.calibrate(pairs, START_NS + round(idx * gap_s * SECOND)) for idx in range(num)]


def align(world: World, pairs: list[Pair], num: int = 4) -> Alignment:
    return align_clocks("test", 0, calibrations(world, pairs, num))


def errors_ns(world: World, alignment: Alignment, last_s: float = 6) -> dict[Pair, float]:
    """The worst difference between two ranks' aligned times of the same moments."""
    moments = START_NS + np.linspace(0, last_s * SECOND, 25).astype(np.int64)
    aligned = []
    for entry in alignment.ranks:
        local = world.clocks[entry.rank].read(moments)
        corrections = np.array([entry.correction_ns(int(moment)) for moment in local])
        aligned.append((local - START_NS) + corrections)
    return {
        (a, b): float(np.abs(aligned[a] - aligned[b]).max())
        for a, b in pairs_of(len(alignment.ranks))
    }


def assert_within_bounds(world: World, alignment: Alignment) -> None:
    for pair, error in errors_ns(world, alignment).items():
        assert error <= alignment.bound_between_ns(*pair), pair


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(0, 200, 20))
def test_injected_clocks_are_aligned_within_the_bound(first_seed: int) -> None:
    bounds = []
    for seed in range(first_seed, first_seed + 20):
        num_ranks = 2 + seed % 3
        world = World(random_clocks(seed, num_ranks, (1, 10, 32)[seed % 3]), seed)
        pairs = pairs_of(num_ranks) if seed % 2 else star_of(num_ranks)
        alignment = align(world, pairs)
        assert_within_bounds(world, alignment)
        bounds += [pair.bound_ns for pair in alignment.pairs]
    assert statistics.median(bounds) < 1000


def test_closed_triangles_allow_a_bound_far_below_half_a_round_trip() -> None:
    world = World(random_clocks(1, 4, 32), 1)
    closed, star = align(world, pairs_of(4)), align(world, star_of(4))
    assert max(pair.bound_ns for pair in closed.pairs) < 150
    assert max(pair.rigorous_bound_ns for pair in closed.pairs) > 550
    assert min(pair.bound_ns for pair in star.pairs) > 550
    assert all(pair.residue_ns is None for pair in star.pairs)


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("pair", [(0, 1), (1, 2)])
def test_an_asymmetric_link_widens_the_bound_instead_of_breaking_it(
    num_ranks: int, pair: Pair
) -> None:
    if pair[1] >= num_ranks:
        pytest.skip("no such pair")
    clocks = random_clocks(7, num_ranks)
    even = align(World(clocks, 7), pairs_of(num_ranks))
    world = World(clocks, 7, {pair: Link(there_ns=2600)})
    skewed = align(world, pairs_of(num_ranks))
    assert_within_bounds(world, skewed)
    assert skewed.bound_between_ns(*pair) > even.bound_between_ns(*pair) + 800


def test_links_that_are_all_asymmetric_show_in_triangles() -> None:
    """Every round trip is as long as every other; only the triangles tell."""
    links = {pair: Link(there_ns=1600) for pair in pairs_of(4)}
    world = World(random_clocks(9, 4), 9, links)
    alignment = align(world, pairs_of(4))
    assert_within_bounds(world, alignment)
    assert min(pair.residue_ns or 0 for pair in alignment.pairs) > 400
    assert max(errors_ns(world, alignment).values()) > 200


def test_a_slow_calibration_is_left_out() -> None:
    clocks = random_clocks(10, 3)
    quiet, busy = World(clocks, 10), World(clocks, 10, {(0, 1): Link(9000, 900, 3000)})
    played = calibrations(quiet, pairs_of(3), 5)
    disturbed = [*played]
    disturbed[2] = busy.calibrate(pairs_of(3), START_NS + 4 * SECOND)
    alignment = align_clocks("test", 0, disturbed)
    assert_within_bounds(quiet, alignment)
    assert disturbed[2][0, 1].round_trip_ns > 9000
    assert alignment.bound_between_ns(0, 1) < 60
    assert len(alignment.ranks[1].segments) == 3


def sample(local_ns: int, offset_ns: float, bound_ns: float = 10.0) -> OffsetSample:
    """A sample whose rigorous bound is `bound_ns`."""
    limits = offset_ns - bound_ns, offset_ns + bound_ns
    return OffsetSample(local_ns, offset_ns, 0.0, *limits, 0.0, 2 * bound_ns, 100, 8)


def line(*offsets: float, gap_ns: int = 1_000_000) -> list[Calibration]:
    return [{(0, 1): sample(idx * gap_ns, offset)} for idx, offset in enumerate(offsets)]


def test_corrections_are_interpolated_between_calibrations() -> None:
    segments = align_clocks("m", 0, line(500.0, 600.0)).ranks[1].segments
    assert [segment.from_ns for segment in segments] == [0]
    assert segments[0].offset_ns == -500.0
    assert segments[0].drift_ppm == pytest.approx(-100.0)


def test_one_calibration_is_a_constant_offset_and_says_so() -> None:
    alignment = align_clocks("m", 0, line(3.0))
    assert alignment.ranks[1].segments[0].drift_ppm == 0.0
    assert "calibrated once" in alignment.notes[0]


def test_drifting_drift_widens_the_bound() -> None:
    straight = align_clocks("m", 0, line(0.0, 10.0, 20.0)).bound_between_ns(0, 1)
    bent = align_clocks("m", 0, line(0.0, 110.0, 20.0)).bound_between_ns(0, 1)
    assert straight == pytest.approx(10.0, abs=0.1)
    assert bent == pytest.approx(10.0 + 100.0 / 2, abs=0.1)


def test_long_gaps_widen_the_bound_by_what_was_measured() -> None:
    bounds = [
        align_clocks("m", 0, line(0.0, 0.0, gap_ns=gap * SECOND)).bound_between_ns(0, 1)
        for gap in (2, 10, 30)
    ]
    assert bounds == pytest.approx([10 + 68 * 0.2**1.5, 10 + 68, 10 + 340], abs=0.1)


def test_the_prior_grows_with_the_gap() -> None:
    values = [curvature_prior_ns(gap) for gap in np.geomspace(0.01, 1000, 60)]
    assert all(a < b for a, b in itertools.pairwise(values))
    assert curvature_prior_ns(110) == pytest.approx(1498)


def test_launches_outside_of_the_calibrations_widen_the_bound() -> None:
    inside = align_clocks("m", 0, line(0.0, 0.0, gap_ns=SECOND))
    after = align_clocks("m", 0, line(0.0, 0.0, gap_ns=SECOND), Outside(after_ns=3e9))
    once = align_clocks("m", 0, line(0.0), Outside(after_ns=1e9))
    # The slope is uncertain by 20 ns a second; the rest is the curvature over 4 s.
    beyond = 3 * 20 + 4 * curvature_prior_ns(4) * 3 / 4
    assert after.bound_between_ns(0, 1) - inside.bound_between_ns(0, 1) == pytest.approx(beyond)
    assert once.bound_between_ns(0, 1) == pytest.approx(10 + 200_000)
    assert "3.0 s after the last" in after.notes[0]


def test_bounds_of_ranks_that_never_played_add_up() -> None:
    each = {(0, 1): sample(0, 0.0, 10.0), (0, 2): sample(0, 0.0, 30.0)}
    alignment = align_clocks("m", 0, [each])
    assert alignment.bound_between_ns(1, 2) == 40.0
    assert alignment.bound_between_ns(0, 2) == 30.0
    assert alignment.widest_bound_ns == 40.0
    assert alignment.bound_between_ns(2, 2) == 0.0


def recorded_calibrations() -> list[Calibration]:
    """What 34 calibrations between 4 H200 measured in 60 s (benchmarks/clock_alignment)."""
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    recorded = json.loads((results / "clock_alignment_samples.json").read_text())
    names = recorded["fields"][2:]
    return [
        {(a, b): OffsetSample(**dict(zip(names, values, strict=True))) for a, b, *values in each}
        for each in recorded["calibrations"]
    ]


def test_recorded_gpus_stay_within_200_ns_for_a_minute() -> None:
    alignment = align_clocks("recorded", 0, recorded_calibrations())
    assert len(alignment.pairs) == 6
    assert max(pair.bound_ns for pair in alignment.pairs) <= 200
    assert all(450 < pair.rigorous_bound_ns < 700 for pair in alignment.pairs)


def test_recorded_calibrations_that_are_held_out_lie_within_the_bound() -> None:
    recorded = recorded_calibrations()
    outside = 0
    for idx in range(1, len(recorded) - 1, 4):
        rest = align_clocks("held out", 0, recorded[:idx] + recorded[idx + 1 :])
        for (a, b), seen in recorded[idx].items():
            predicted = rest.ranks[a].correction_ns(
                seen.local_ns - round(seen.offset_ns)
            ) - rest.ranks[b].correction_ns(seen.local_ns)
            outside += abs(predicted - seen.offset_ns) > rest.bound_between_ns(a, b)
    assert outside == 0


def test_offsets_and_drifts_are_told_by_pair() -> None:
    world = World([Clock(), Clock(500, 2e-6), Clock(-300, 5e-6)], 11)
    pairs = {(pair.a, pair.b): pair for pair in align(world, pairs_of(3)).pairs}
    assert pairs[0, 1].drift_ppm == pytest.approx(2, abs=0.02)
    assert pairs[1, 2].drift_ppm == pytest.approx(3, abs=0.02)
    assert pairs[1, 2].offset_ns == pytest.approx(-800, abs=40)
    assert pairs[1, 2].num_calibrations == 4
