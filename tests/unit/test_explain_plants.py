"""The plants of `benchmarks/plants` on a machine, not on two GPUs: found first, and worth what they cost."""

from __future__ import annotations

import functools

import pytest

from benchmarks.plants.schedule import (
    BALANCED,
    CALLS,
    MAX_ITEMS,
    NUM_BLOCKS,
    PLANTS,
    SLOW_CALLS,
    CallPlan,
    Section,
    has_uneven_starts_without,
    is_right,
    plan_of,
)
from kprof.analysis.findings import explain_trace
from patterns.machine import Await, Machine, Put, Steps, Track, Work

pytestmark = pytest.mark.slow

ITEM_NS = 18_000


def exchange(plan: CallPlan, stall_ns: int, me: Track) -> Steps:
    """What kernel.hip does, and a first look of block 2 of rank 1 that takes longer than usual."""
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
    section = Section(plant, is_uneven, 0)
    machine = Machine(2, seed=3, noise=0.02, travel_ns=900, num_blocks=NUM_BLOCKS)
    for call in range(CALLS):
        plan = plan_of(section, call)
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
    assert is_right(plant, first, 0), first
    without = run(BALANCED, has_uneven_starts_without(Section(plant, is_uneven, 0)))
    gain = sum(machine.lengths) - sum(without.lengths)
    assert first.gain_ns == pytest.approx(gain, rel=0.05)


@pytest.mark.parametrize("stall_ns", [1000, 2000, 4000])
def test_a_look_that_stalls_long_after_its_data_came_is_no_slow_link(stall_ns: int) -> None:
    plant = "3 of 12 launches"
    machine = run(plant, stall_ns=stall_ns)
    (first,) = explain_trace(machine.trace()).findings
    assert is_right(plant, first, 0), first
    gain = sum(machine.lengths) - sum(run(BALANCED).lengths)
    assert first.gain_ns == pytest.approx(gain, rel=0.05)


def test_without_a_plant_there_is_nothing_to_find() -> None:
    assert explain_trace(run(BALANCED).trace()).findings == ()
