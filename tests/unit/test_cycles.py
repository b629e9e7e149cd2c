"""Cycle counts on the real-time clock: against a simulated processor whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kprof.clocks.cycles import Anchors, CycleMap, fit_cycles, torn_anchors

STEP_NS = 32
START_NS = 1_760_000_000_000_000_000
# Processors count from different moments, and a group of them runs 0.03 % slower than the rest.
RATES_GHZ = np.array([1.98, 1.98, 1.9794])
ORIGINS = np.array([0, 23_490_048, 1 << 44])


def cycles_at(hw_id: np.ndarray, elapsed_ns: np.ndarray) -> np.ndarray:
    return (ORIGINS[hw_id] + RATES_GHZ[hw_id] * elapsed_ns).astype(np.int64)


def reading(elapsed_ns: np.ndarray) -> np.ndarray:
    """The real-time clock: at the last tick."""
    return START_NS + (np.floor(elapsed_ns) // STEP_NS * STEP_NS).astype(np.int64)


def anchors_at(elapsed_ns: np.ndarray, launch: int = 0) -> Anchors:
    """One anchor of every processor at each of the moments."""
    moments = np.repeat(np.asarray(elapsed_ns, dtype=float), 3) + np.tile(
        [0.0, 7.0, 19.0], len(elapsed_ns)
    )
    hw_id = np.tile(np.arange(3), len(elapsed_ns))
    return Anchors(
        np.full(len(hw_id), launch), hw_id, cycles_at(hw_id, moments), reading(moments)
    )  # fmt: skip


def of_one(fitted: CycleMap, cycles: np.ndarray) -> np.ndarray:
    """Times of the first launch on the first processor."""
    zeros = np.zeros(len(cycles), dtype=int)
    return fitted.to_ns(zeros, zeros, cycles)


def anchors_of_one(cycles: np.ndarray, realtime_ns: np.ndarray) -> Anchors:
    zeros = np.zeros(len(cycles), dtype=int)
    return Anchors(zeros, zeros, cycles.astype(np.int64), realtime_ns)


@pytest.mark.parametrize("span_ns", [15_000.0, 120_000.0, 3_000_000.0, 40_000_000.0])
@pytest.mark.parametrize("num_anchors", [2, 5, 100])
def test_durations_agree_within_the_step(span_ns: float, num_anchors: int) -> None:
    random = np.random.default_rng(int(span_ns) + num_anchors)
    moments = np.sort(random.uniform(0, span_ns, num_anchors - 2))
    fitted = fit_cycles(anchors_at(np.concatenate([[0.0], moments, [span_ns]])), STEP_NS, 1.98e9)
    hw_id = random.integers(0, 3, 5000)
    begin = random.uniform(0, span_ns - 12_000, 5000)
    end = begin + random.uniform(10_000, span_ns - begin)
    launch = np.zeros(5000, dtype=int)
    start_ns = fitted.to_ns(launch, hw_id, cycles_at(hw_id, begin))
    end_ns = fitted.to_ns(launch, hw_id, cycles_at(hw_id, end))
    assert np.abs((end_ns - start_ns) - (end - begin)).max() <= STEP_NS
    error = np.abs(start_ns - START_NS - begin).max()
    assert error <= STEP_NS
    assert fitted.error_ns <= STEP_NS


def test_a_change_of_frequency_is_followed() -> None:
    """Half the frequency from 10 ms on: a straight line would be off by milliseconds."""

    def cycles(elapsed_ns: np.ndarray) -> np.ndarray:
        return (2.0 * np.minimum(elapsed_ns, 10e6) + 1.0 * np.maximum(elapsed_ns - 10e6, 0)).astype(
            np.int64
        )

    moments = np.linspace(0, 20e6, 2001)
    fitted = fit_cycles(anchors_of_one(cycles(moments), reading(moments)), STEP_NS, 2e9)
    begin = np.linspace(0, 19.9e6, 997)
    far = (np.abs(begin - 10e6) > 1e6) & (np.abs(begin + 50_000 - 10e6) > 1e6)
    start_ns, end_ns = (of_one(fitted, cycles(at)) for at in (begin, begin + 50_000))
    assert np.abs(end_ns - start_ns - 50_000)[far].max() <= STEP_NS
    error = np.abs(start_ns - START_NS - begin).max()
    assert error <= fitted.error_ns <= STEP_NS


def test_few_anchors_of_a_steady_clock_are_better_than_each_of_them() -> None:
    """One line through all of them, where windows of a fixed width would each know half a step."""
    random = np.random.default_rng(3)
    moments = np.sort(random.uniform(0, 150e6, 300))
    scatter = random.uniform(-5, 5, 300)
    on_first = np.zeros(2000, dtype=int)
    anchors = anchors_of_one(cycles_at(on_first[:300], moments), reading(moments + scatter))
    begin = random.uniform(0, 149e6, 2000)
    end = begin + random.uniform(10_000, 1e6, 2000)
    fitted = fit_cycles(anchors, STEP_NS, 1.98e9)
    start_ns, end_ns = (of_one(fitted, cycles_at(on_first, at)) for at in (begin, end))
    assert np.abs(end_ns - start_ns - (end - begin)).max() <= STEP_NS / 8


def test_lines_that_nearly_touch_do_not_run_backwards() -> None:
    """Anchors of several tracks, a few cycles apart, on a clock that changes its frequency again and again."""
    random = np.random.default_rng(4)
    ghz = np.repeat(random.uniform(1.7, 1.98, 40), 500)
    gaps_ns = random.choice([3.0, 40.0, 30_000.0], len(ghz))
    moments, counts = np.cumsum(gaps_ns), np.cumsum(gaps_ns * ghz)
    fitted = fit_cycles(anchors_of_one(counts, reading(moments)), STEP_NS, 1.98e9)
    assert (np.diff(of_one(fitted, counts.astype(np.int64))) >= 0).all()
    assert fitted.error_ns <= STEP_NS


def test_one_anchor_takes_the_rate_of_its_launch_then_of_all_then_the_nominal_one() -> None:
    alone = anchors_of_one(np.array([1000]), np.array([START_NS]))
    lasted = np.diff(of_one(fit_cycles(alone, STEP_NS, 2e9), np.array([1000, 21_000])))
    assert lasted.tolist() == [10_000]
    beside = anchors_at(np.array([0.0, 1e6]), launch=4)
    both = Anchors(
        *(np.concatenate([a, b]) for a, b in (
            (np.array([4]), beside.launch), (np.array([9]), beside.hw_id),
            (np.array([500]), beside.cycles), (np.array([START_NS]), beside.realtime_ns)))
    )  # fmt: skip
    ends = fit_cycles(both, STEP_NS, 1e9).to_ns(
        np.full(2, 4), np.full(2, 9), np.array([500, 500 + 19_800])
    )
    assert abs(int(np.diff(ends)[0]) - 10_000) <= 3


def test_launches_do_not_share_a_line() -> None:
    """Between two launches the device slept at a low frequency: interpolating across would stretch both."""
    early, late = anchors_at(np.array([0.0, 50_000.0]), 0), anchors_at(np.array([0.0, 50_000.0]), 1)
    asleep = 30_000_000
    both = Anchors(
        np.concatenate([early.launch, late.launch]),
        np.concatenate([early.hw_id, late.hw_id]),
        np.concatenate([early.cycles, late.cycles + asleep // 10]),
        np.concatenate([early.realtime_ns, late.realtime_ns + asleep]),
    )
    fitted = fit_cycles(both, STEP_NS, 1.98e9)
    inside = of_one(fitted, cycles_at(np.zeros(2, int), np.array([10_000.0, 40_000.0])))
    assert abs(int(np.diff(inside)[0]) - 30_000) <= STEP_NS


def test_a_launch_of_twelve_minutes_with_changing_frequency_is_followed() -> None:
    """A processor changes between two frequencies every tenth of the launch."""
    moments = np.linspace(0, 12 * 60e9, 3000)
    ghz = np.where((np.arange(3000) * 10 // 3000) % 2 == 0, 1.98, 0.345)
    counts = np.cumsum(np.diff(moments, prepend=0.0) * ghz)
    assert counts[-1] > 1 << 39
    moments, counts = np.append(moments, moments[-1] * 3), np.append(counts, counts[-1] * 3)
    anchors = anchors_of_one(counts, reading(moments))
    assert not torn_anchors(anchors, 1.98e9).any()
    fitted = fit_cycles(anchors, STEP_NS, 1.98e9)
    assert fitted.error_ns <= STEP_NS
    mapped = of_one(fitted, counts.astype(np.int64))
    assert np.abs(mapped - START_NS - moments).max() <= STEP_NS


def damaged(anchors: Anchors, row: int, **columns: int) -> Anchors:
    changed = {}
    for name, value in columns.items():
        changed[name] = getattr(anchors, name).copy()
        changed[name][row] = value
    return replace(anchors, **changed)


@pytest.mark.parametrize("row", [0, 3, 150, 299])
@pytest.mark.parametrize(
    "columns",
    [
        {"cycles": 0},
        {"cycles": (1 << 61) + 12_345},
        {"cycles": -5},
        {"realtime_ns": 0},
        {"realtime_ns": START_NS + (1 << 45)},
        {"realtime_ns": (1 << 62) + 1},
    ],
)
def test_a_torn_anchor_is_found_and_the_others_are_not(row: int, columns: dict[str, int]) -> None:
    whole = anchors_at(np.linspace(0.0, 40e6, 100))
    whole = replace(whole, cycles=whole.cycles + 10**15)
    torn = torn_anchors(damaged(whole, row, **columns), 1.98e9)
    assert np.flatnonzero(torn).tolist() == [row]


def test_a_fit_through_a_torn_anchor_ends_and_says_how_wrong_it_is() -> None:
    """It took for ever: the torn anchor lay beyond the cycles that a search could tell apart."""
    whole = anchors_at(np.linspace(0.0, 40e6, 100))
    fitted = fit_cycles(damaged(whole, 150, cycles=(1 << 61) + 9), STEP_NS, 1.98e9)
    assert fitted.error_ns < 1e9
    fitted = fit_cycles(damaged(whole, 150, realtime_ns=START_NS + (1 << 45)), STEP_NS, 1.98e9)
    assert fitted.error_ns > 1e9


@pytest.mark.slow
@settings(max_examples=200)
@given(st.integers(0, 1 << 32), st.integers(1, 400), st.integers(1, 62), st.integers(1, 4))
def test_time_never_runs_backwards_whatever_the_anchors_say(
    seed: int, num_anchors: int, bits: int, num_processors: int
) -> None:
    random = np.random.default_rng(seed)
    cycles = random.integers(0, 1 << bits, num_anchors)
    hw_id = random.integers(0, num_processors, num_anchors)
    zeros = np.zeros(num_anchors, dtype=int)
    anchors = Anchors(zeros, hw_id, cycles, random.integers(0, 1 << 62, num_anchors))
    assert torn_anchors(anchors, 1.98e9).shape == (num_anchors,)
    fitted = fit_cycles(anchors, STEP_NS, 1.98e9)
    for processor in np.unique(hw_id):
        asked = np.sort(np.append(cycles, random.integers(0, 1 << bits, 100)))
        place = np.zeros(len(asked), dtype=int), np.full(len(asked), processor)
        assert (np.diff(fitted.to_ns(*place, asked)) >= 0).all()
