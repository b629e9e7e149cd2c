"""Patterns from a machine that shares nothing with the simulator: the first finding is what was planted, or silence.

A case of each class in which conclusions once went wrong (the benchmark has their rates), and the plants of
`patterns/planted_calls.py` on a machine.
"""

from __future__ import annotations

import functools
from enum import Enum

import pytest

from benchmarks.conclusion_classes import judge
from kprof.analysis.findings import explain_trace
from kprof.analysis.findings.finding import Kind
from patterns.cases import PATTERNS, Pattern
from patterns.classes import CLASSES
from patterns.machine import Await, Machine, Put, Steps, Track, Work
from patterns.planted_calls import (
    BALANCED,
    CALLS,
    MAX_ITEMS,
    NUM_BLOCKS,
    PLANTS,
    SLOW_CALLS,
    CallPlan,
    has_uneven_starts_without,
    is_right,
    plan_of,
)

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
    assert verdict.first is not False
    assert verdict.all is not False
    assert verdict.silent is not False


# By class, number and seed: one block in each call, always another one, at 40 % of a call; calls whose sizes are in order;
# a slow SM that has the same block in most calls.
@pytest.mark.parametrize(
    ("name", "number", "seed"),
    [("cliff", 21, 77), ("sizes", 27, 20261125), ("position", 4, 20261128)],
)
def test_what_once_went_wrong_is_right(name: str, number: int, seed: int) -> None:
    verdict = judge(name, number, seed)
    assert (verdict.first, verdict.silent) in [(True, None), (None, True)]


ITEM_NS = 18_000


def exchange(plan: CallPlan, stall_ns: int, me: Track) -> Steps:
    """Each block pushes what it computes and sums what comes, and a first look of block 2 of rank 1 that takes longer than usual."""
    factor, other = plan.rounds[me.rank, me.block], 1 - me.rank
    for item in range(plan.items[me.rank, me.block]):
        yield Work("math", ITEM_NS * factor)
        yield Put("push", other, me.block * MAX_ITEMS + item, 2500)
    for item in range(plan.items[other, me.block]):
        is_stalled = (me.rank, me.block, item) == (1, 2, 0)
        yield Await("pull", other, me.block * MAX_ITEMS + item, stall_ns if is_stalled else 0)
        yield Work("sum", ITEM_NS / 4 * factor)
    yield Work("store", ITEM_NS * factor)


@functools.cache
def run(plant: str, is_uneven: bool = False, stall_ns: int = 0) -> Machine:
    machine = Machine(2, seed=3, noise=0.02, travel_ns=900, num_blocks=NUM_BLOCKS)
    for call in range(CALLS):
        plan = plan_of(plant, is_uneven, call)
        tracks = [Track(rank, block) for rank in range(2) for block in range(NUM_BLOCKS)]
        late = {rank: float(ns) for rank, ns in enumerate(plan.late_ns)}
        stall_of_call_ns = stall_ns if call == SLOW_CALLS[0] else 0
        machine.call(tracks, functools.partial(exchange, plan, stall_of_call_ns), late=late)
    return machine


@pytest.mark.parametrize("is_uneven", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("plant", PLANTS)
def test_a_plant_is_first_and_worth_what_it_costs(plant: str, is_uneven: bool) -> None:
    """What a rank starts late by chance is not what a slow rank costs."""
    machine = run(plant, is_uneven)
    first = explain_trace(machine.trace()).findings[0]
    assert is_right(plant, first), first
    without = run(BALANCED, has_uneven_starts_without(plant, is_uneven))
    gain = sum(machine.lengths) - sum(without.lengths)
    assert first.gain_ns == pytest.approx(gain, rel=0.05)


@pytest.mark.parametrize("stall_ns", [1000, 2000, 4000])
def test_a_look_that_stalls_long_after_its_data_came_is_no_slow_link(stall_ns: int) -> None:
    plant = "3 of 12 launches"
    machine = run(plant, stall_ns=stall_ns)
    (first,) = explain_trace(machine.trace()).findings
    assert is_right(plant, first), first
    gain = sum(machine.lengths) - sum(run(BALANCED).lengths)
    assert first.gain_ns == pytest.approx(gain, rel=0.05)


def test_without_a_plant_there_is_nothing_to_find() -> None:
    assert explain_trace(run(BALANCED).trace()).findings == ()
