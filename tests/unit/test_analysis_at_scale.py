"""Thousands of calls take thousands of steps, not the square of that, and no gigabytes."""

from __future__ import annotations

import cProfile
import pstats
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from kprof.analysis import equivalence
from kprof.analysis.equivalence import compare
from kprof.analysis.findings import described
from kprof.analysis.findings.candidates import grown
from kprof.analysis.findings.candidates.excess import cells_of, deviations_of, sizes_of_calls
from kprof.analysis.findings.described import _interval
from kprof.analysis.findings.when import When, when_of

NUM_CALLS = 3000
RANDOM = np.random.default_rng(11)
NONE = np.zeros(NUM_CALLS)


def num_functions_called(work: Callable[[], object]) -> int:
    """How many functions a piece of work calls: the same on every machine."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


def most_bytes_of(work: Callable[[], object]) -> int:
    """The most memory that a piece of work has at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_cost_in_no_call_comes_sometimes() -> None:
    """An index error, it was."""
    never = np.zeros(NUM_CALLS, dtype=bool)
    assert when_of(never, never, NONE, NONE, False) == (When.SOMETIMES, 0)


@pytest.mark.parametrize(
    ("first", "period", "expected"),
    [
        (3, 7, (When.PERIODIC, 7)),
        (0, 2, (When.PERIODIC, 2)),
        (8, 7, (When.SOMETIMES, 0)),
        (0, NUM_CALLS // 3, (When.PERIODIC, NUM_CALLS // 3)),
        (0, NUM_CALLS // 2, (When.SOMETIMES, 0)),
    ],
)
def test_every_nth_call(first: int, period: int, expected: tuple[When, int]) -> None:
    mask = np.zeros(NUM_CALLS, dtype=bool)
    mask[first::period] = True
    assert when_of(mask, mask, NONE, NONE, False) == expected
    mask[first + period] = False
    assert when_of(mask, mask, NONE, NONE, False) == (When.SOMETIMES, 0)


def test_a_period_is_not_tried_for_each_call() -> None:
    some = RANDOM.random(NUM_CALLS) < 0.1
    assert num_functions_called(lambda: when_of(some, some, NONE, NONE, False)) < 200


def test_sizes_of_calls_take_no_step_for_each_call() -> None:
    call, block = (axis.ravel() for axis in np.indices((NUM_CALLS, 8)))
    cells, _ = cells_of(call, np.zeros_like(call), block, RANDOM.uniform(1e4, 2e4, len(call)))
    assert num_functions_called(lambda: sizes_of_calls(cells, NUM_CALLS)) < 1000


def test_a_deviation_in_one_call_holds_nothing_of_the_others() -> None:
    call, block = (axis.ravel() for axis in np.indices((NUM_CALLS, 4)))
    cells, _ = cells_of(call, np.zeros_like(call), block, np.full(len(call), 1e4))
    y = np.where(RANDOM.random(len(call)) < 0.1, 1.0, 0.0)
    sigma = np.full(len(y), 0.01)
    assert most_bytes_of(lambda: deviations_of(cells, y, sigma, NUM_CALLS)) < 4_000_000


def test_intervals_of_many_calls_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    gains = np.where(RANDOM.random(NUM_CALLS) < 0.1, 500.0, 0.0)
    lengths = 1e4 + gains + RANDOM.normal(0, 100, NUM_CALLS)
    assert most_bytes_of(lambda: _interval(gains, lengths)) < 1_000_000
    of_many = _interval(gains, lengths)
    monkeypatch.setattr(described, "_MOST_DRAWN", NUM_CALLS)
    low, high = _interval(gains, lengths)
    assert np.allclose(of_many, (low, high), atol=0.1 * (high - low))


def test_comparisons_of_many_samples_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    base, candidate = RANDOM.lognormal(9, 0.3, (2, NUM_CALLS))
    assert most_bytes_of(lambda: compare(base, candidate, 0.0)) < 1_000_000
    of_many = compare(base, candidate, 0.0)
    monkeypatch.setattr(equivalence, "_MOST_DRAWN", NUM_CALLS)
    for one, drawn in zip(of_many, compare(base, candidate, 0.0), strict=True):
        ends = (one.low, one.high), (drawn.low, drawn.high)
        assert np.allclose(*ends, atol=0.1 * (drawn.high - drawn.low))


def test_what_places_usually_took_takes_no_step_for_each_place() -> None:
    call, block = (axis.ravel() for axis in np.indices((3, NUM_CALLS)))
    cells, _ = cells_of(call, np.zeros_like(call), block, RANDOM.uniform(1e4, 2e4, len(call)))
    assert num_functions_called(lambda: grown._usual(cells, cells, 100.0)) < 20_000
    level, _ = grown._usual(cells, cells, 100.0)
    assert np.array_equal(level.reshape(3, -1)[0], np.median(cells.sum_ns.reshape(3, -1), axis=0))
