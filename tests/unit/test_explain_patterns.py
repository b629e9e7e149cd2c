"""Patterns from a machine that shares nothing with the simulator: the first finding is what was planted, or silence.

A case of each class in which conclusions once went wrong (the benchmark has their rates), and ranks whose starts are
apart by chance.
"""

from __future__ import annotations

import functools
from collections.abc import Container
from enum import Enum
from typing import Any

import numpy as np
import pytest

from benchmarks.conclusion_classes import judge
from kprof.analysis.findings import explain_trace
from kprof.analysis.findings.finding import Kind
from patterns.bodies import grid
from patterns.cases import PATTERNS, Pattern
from patterns.classes import CLASSES
from patterns.machine import Await, Machine, Put, Steps, Track, Work

pytestmark = pytest.mark.slow
OF_TWO_CAUSES = ("two causes", "a straggler beside launch skew")


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name.replace(" ", "-"))
def test_the_first_conclusion_is_what_was_planted(pattern: Pattern) -> None:
    run = pattern.run(True)
    explanation = explain_trace(run.trace())
    if pattern.expected is None:
        assert explanation.findings == ()
        assert pattern.limit in (None, *[limit.kind.value for limit in explanation.limits[:1]])
        return
    first, *others = explanation.findings
    assert bool(others) == (pattern.name in OF_TWO_CAUSES), others
    said = {name: getattr(first, name) for name in pattern.expected}
    said = {name: v.value if isinstance(v, Enum) else v for name, v in said.items()}
    said = {name: v.name if isinstance(v, Kind) else v for name, v in said.items()}
    assert said == pattern.expected
    if pattern.is_gain_known:
        total = sum(run.lengths)
        gain = total - sum(pattern.run(False).lengths)
        assert first.gain_ns == pytest.approx(gain, abs=max(0.03 * total, 0.1 * gain))


@pytest.mark.parametrize("name", CLASSES)
def test_the_planted_cause_is_named_and_nothing_else(name: str) -> None:
    verdict = judge(name, 0, 11)
    assert verdict.is_first, verdict
    assert verdict.is_all, verdict


# By class, number and seed: one block in each call, always another one, at 40 % of a call; calls whose sizes are in order;
# a slow SM that has the same block in most calls.
@pytest.mark.parametrize(
    ("name", "number", "seed"),
    [("cliff", 21, 77), ("sizes", 27, 20261125), ("position", 4, 20261128)],
)
def test_what_once_went_wrong_is_right(name: str, number: int, seed: int) -> None:
    assert judge(name, number, seed).is_first


CALLS = range(12)
SLOW_CALLS = (2, 6, 7)
ITEM_NS, NUM_ITEMS = 18_000, 3


def exchange(factors: tuple[float, float], stall_ns: int, me: Track) -> Steps:
    """Two ranks, by how much slower they are, work for each other. The first look of block 2 of rank 1 takes longer."""
    factor, other = factors[me.rank], 1 - me.rank
    slots = [me.block * NUM_ITEMS + item for item in range(NUM_ITEMS)]
    for slot in slots:
        yield Work("math", ITEM_NS * factor)
        yield Put("push", other, slot, 2500)
    for item, slot in enumerate(slots):
        is_stalled = (me.rank, me.block, item) == (1, 2, 0)
        yield Await("pull", other, slot, stall_ns if is_stalled else 0)
        yield Work("sum", ITEM_NS / 4 * factor)
    yield Work("store", ITEM_NS * factor)


def run(
    factors: tuple[float, float] = (1.0, 1.0),
    calls: Container[int] = CALLS,
    late_ns: int = 0,
    is_apart: bool = False,
    stall_ns: int = 0,
) -> Machine:
    """Rank 1 starts late; in these calls ranks are slower; `is_apart`: both start late by chance, too."""
    machine = Machine(2, seed=3, noise=0.02, travel_ns=900, num_blocks=32)
    for call in CALLS:
        chance = np.random.default_rng([5, call]).integers(0, 15_000, 2) * is_apart
        of_call = factors if call in calls else (1.0, 1.0), stall_ns * (call == SLOW_CALLS[0])
        late = {0: float(chance[0]), 1: float(chance[1] + late_ns)}
        machine.call(grid(machine, 32), functools.partial(exchange, *of_call), late=late)
    return machine


def gain_over(machine: Machine, without: Machine) -> Any:
    return pytest.approx(sum(machine.lengths) - sum(without.lengths), rel=0.05)


@pytest.mark.parametrize("is_apart", [False, True], ids=["together", "apart"])
def test_what_a_rank_starts_late_by_chance_is_not_what_a_slow_rank_costs(is_apart: bool) -> None:
    slow, without = run((1.6, 1.0), is_apart=is_apart), run(is_apart=is_apart)
    first = explain_trace(slow.trace()).findings[0]
    assert (first.kind.name, first.ranks, first.blocks) == ("slow", (0,), ())
    assert first.gain_ns == gain_over(slow, without)
    # A rank that starts late is late by both: without them ranks start together.
    late = run(late_ns=60_000, is_apart=is_apart)
    first = explain_trace(late.trace()).findings[0]
    assert (first.kind.name, first.ranks) == ("late_start", (1,))
    assert first.gain_ns == gain_over(late, run())


@pytest.mark.parametrize("stall_ns", [1000, 2000, 4000])
def test_a_look_that_stalls_long_after_its_data_came_is_no_slow_link(stall_ns: int) -> None:
    slow = run((1.0, 2.0), SLOW_CALLS, stall_ns=stall_ns)
    (first,) = explain_trace(slow.trace()).findings
    assert (first.kind.name, first.ranks, first.calls) == ("slow", (1,), SLOW_CALLS)
    assert first.gain_ns == gain_over(slow, run())
