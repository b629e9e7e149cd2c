"""A scenario: a program, sizes, noise and causes.

It is simulated with all of its causes, or with some.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from simulation import noise
from simulation.causes import Cause, Kind, change_durations, change_gaps, change_travel
from simulation.program import Op, Program
from simulation.run import CallRun, Engine, Run, Times
from simulation.topologies import HELD_BACK, TOPOLOGIES, Load, Sizes

_BETWEEN_CALLS_NS = 20_000
_BETWEEN_LAUNCHES_NS = 1_500
_LARGEST_JITTER_NS = 300


@dataclass(frozen=True)
class Scenario:
    """A simulation's input. `draw.py` draws its numbers, or a test sets them."""

    topology: str = "all_to_all"
    sizes: Sizes = field(default_factory=Sizes)
    num_calls: int = 5
    causes: tuple[Cause, ...] = ()
    noise_shape: noise.Shape = "normal"
    noise: float = 0.05
    travel_ns: int = 500
    room: int = 0
    clock_error_ns: float = 0.0
    seed: int = 0


def simulate(scenario: Scenario, causes: Collection[int] | None = None) -> Run:
    """Run a scenario with some of its causes (default: all). Each operation has its own random
    numbers."""
    chosen = range(len(scenario.causes)) if causes is None else causes
    active = [scenario.causes[i] for i in sorted(chosen)]
    random = np.random.default_rng([scenario.seed, 1])
    worst = scenario.clock_error_ns
    offsets = random.uniform(-worst, worst, scenario.sizes.num_ranks)
    offsets[0] = 0.0
    runs: list[CallRun] = []
    origin = 1000
    for call in range(scenario.num_calls):
        program = program_of(scenario.topology, scenario.sizes, _load_key(active, call))
        runs.append(
            Engine(program, _times(scenario, program, active, call), origin, scenario.room).run()
        )
        origin = max(runs[-1].ends) + _BETWEEN_CALLS_NS
    return Run(runs, worst, offsets.tolist())


def gain_ns(scenario: Scenario, causes: Collection[int], without: int) -> int:
    """How much shorter the run with `causes` gets, over all calls, without one of them."""
    before = sum(simulate(scenario, causes).lengths_ns)
    return before - sum(simulate(scenario, [i for i in causes if i != without]).lengths_ns)


def true_gains(scenario: Scenario) -> list[int]:
    """The cost of every cause while the others stay."""
    everything = range(len(scenario.causes))
    before = sum(simulate(scenario).lengths_ns)
    return [
        before - sum(simulate(scenario, [i for i in everything if i != cause]).lengths_ns)
        for cause in everything
    ]


# (rank, peer or -1, factor) of items sent, and (rank, block, factor) of items on top.
_LoadKey = tuple[tuple[bool, int, int, float], ...]


def _load_key(active: list[Cause], call: int) -> _LoadKey:
    entries = []
    for cause in active:
        if cause.kind is not Kind.MORE_ITEMS or cause.amount_in(call) == 0:
            continue
        is_block = cause.blocks is not None or cause.path is not None
        places = (
            [cause.path[call]]
            if cause.path is not None
            else [(rank, block) for rank in cause.ranks or () for block in cause.blocks or (-1,)]
        )
        entries += [(is_block, rank, block, cause.amount_in(call)) for rank, block in places]
    return tuple(entries)


@lru_cache(maxsize=64)
def program_of(topology: str, sizes: Sizes, key: _LoadKey = ()) -> Program:
    """The program of a call. `key` are the causes that add items to it."""

    def items(rank: int, _peer: int) -> int:
        more = sum(amount for is_block, r, _, amount in key if not is_block and r == rank)
        return round(sizes.items * (1 + more))

    def extra(rank: int, block: int) -> int:
        more = sum(a for is_block, r, b, a in key if is_block and (r, b) == (rank, block))
        return round(sizes.items * more)

    return (TOPOLOGIES | HELD_BACK)[topology](sizes, Load(items, extra))


def _times(scenario: Scenario, program: Program, active: list[Cause], call: int) -> Times:
    factors = noise.factors(program.key, scenario.noise_shape, scenario.noise, scenario.seed, call)
    duration = program.mean_ns * factors
    gap = 20 * noise.uniform(program.key, scenario.seed, call, 5)
    scattered = 1 + scenario.noise * noise.normal(program.key, scenario.seed, call, 6)
    of_links = scenario.travel_ns * np.maximum(0.3, scattered)
    travel = np.where(program.op == Op.WAIT, of_links, 0.0)
    # Data from another warp of the same block arrives at once.
    travel[np.isin(program.region, ("take", "wait-room"))] = 30
    for cause in active:
        change_durations(cause, program, call, duration)
        change_gaps(cause, program, call, gap)
        change_travel(cause, program, call, travel)
    return Times(
        np.rint(duration).astype(np.int64).tolist(),
        np.rint(gap).astype(np.int64).tolist(),
        np.rint(travel).astype(np.int64).tolist(),
        _launch_gaps(scenario, program, active, call),
    )


def _launch_gaps(
    scenario: Scenario, program: Program, active: list[Cause], call: int
) -> list[list[int]]:
    random = np.random.default_rng([scenario.seed, 2, call])
    shape = (program.num_stages, program.num_ranks)
    gaps = random.integers(0, _LARGEST_JITTER_NS, shape)
    gaps[1:] += _BETWEEN_LAUNCHES_NS
    for cause in active:
        if cause.kind is Kind.LATE_START:
            ranks = cause.ranks or () if cause.path is None else (cause.path[call][0],)
            gaps[0, list(ranks)] += round(cause.amount_in(call))
    return [[int(value) for value in row] for row in gaps]
