"""Cases drawn at random in nine classes in which conclusions went wrong, with the truth planted.

    case = draw("sizes", numpy.random.default_rng(7))
    machine = case.run(case.everything)         # with all causes; fewer: what each of them costs
    trace = case.trace(machine)

A cause is the fields that a finding about it must have, as one or several alternatives. A case
without causes has to be silent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from kprof.trace import Trace
from patterns import bodies
from patterns.bodies import Plant, grid
from patterns.machine import Body, Machine, Steps, Track, Travel

Fields = Mapping[str, object]
Present = frozenset[int]
Random = np.random.Generator
Weigh = Callable[[Track, str, int], float]

_WORK: Final = ("load", "sum", "store", "push")


@dataclass(frozen=True)
class Case:
    """One case; see the module. `is_whole`: lengths of calls overlap, so the run's counts."""

    name: str
    run: Callable[[Present], Machine]
    causes: tuple[tuple[Fields, ...], ...] = ()
    has_flows: bool = True
    is_aligned: bool = True
    is_whole: bool = False

    @property
    def everything(self) -> Present:
        """All causes."""
        return frozenset(range(len(self.causes)))

    def trace(self, machine: Machine) -> Trace:
        """What was recorded, as this case shows it."""
        return machine.trace(has_flows=self.has_flows, is_aligned=self.is_aligned)


@dataclass(frozen=True)
class _Shape:
    ranks: int
    blocks: int
    calls: int
    seed: int
    noise: float
    kernel: str


def draw(name: str, random: Random) -> Case:
    """A case of a class."""
    shape = _Shape(
        int(random.integers(3, 7)),
        int(random.integers(3, 8)),
        int(random.integers(6, 16)),
        int(random.integers(1 << 30)),
        float(random.uniform(0.02, 0.08)),
        str(random.choice(["exchange", "chain", "met", "gathered"])),
    )
    return CLASSES[name](random, shape)


def _body(shape: _Shape, plant: Plant) -> Body:
    ranks, blocks = shape.ranks, shape.blocks
    if shape.kernel == "exchange":
        return bodies.exchange(ranks, blocks, plant)
    if shape.kernel == "chain":
        return bodies.chain(ranks, blocks, plant)
    if shape.kernel == "met":
        return bodies.met(ranks * blocks, plant)
    if shape.kernel == "one long event":
        return bodies.gathered(ranks, blocks, plant, 15_000)
    return bodies.gathered(ranks, blocks, plant, 1200)


def _machine(shape: _Shape) -> Machine:
    return Machine(shape.ranks, seed=shape.seed, noise=shape.noise)


def _calls(
    shape: _Shape,
    plant: Callable[[Present], Plant],
    late: Callable[[Present, int], dict[int, float]] = lambda _present, _call: {},
    travel: Callable[[Present], Travel | None] = lambda _present: None,
) -> Callable[[Present], Machine]:
    def run(present: Present) -> Machine:
        machine = _machine(shape)
        for call in range(shape.calls):
            tracks = grid(machine, shape.blocks)
            body = _body(shape, plant(present))
            machine.call(tracks, body, late=late(present, call), travel=travel(present))
        return machine

    return run


def _slower(where: Weigh, factor: float, of: int = 0) -> Callable[[Present], Plant]:
    """`where` says by which part of `factor` a step of cause `of` is slower."""

    def plant(present: Present) -> Plant:
        if of not in present:
            return Plant()
        return Plant(how=lambda me, region, turn: 1 + (factor - 1) * where(me, region, turn))

    return plant


def _region_of(random: Random, kernel: str) -> str:
    regions = {"met": ["math"], "gathered": ["load", "sum", "math"], "chain": ["load", "sum"]}
    return str(random.choice(regions.get(kernel, ["load", "sum", "store"])))


def _blind(random: Random, shape: _Shape) -> Case:
    """No flows, or no clock in common: durations tell all the same."""
    rank, factor = int(random.integers(shape.ranks)), float(random.uniform(2.5, 8))
    region = _region_of(random, shape.kernel) if random.random() < 0.6 else None
    block = int(random.integers(shape.blocks)) if random.random() < 0.3 else None
    fields: dict[str, object] = {"kind": "slow", "ranks": (rank,)}
    fields |= {"blocks": () if block is None else (block,)}
    fields |= {"region": region} if region else {}

    def where(me: Track, name: str, _turn: int) -> float:
        return me.rank == rank and block in (None, me.block) and region in (None, name)

    is_aligned = bool(random.random() < 0.5)
    run = _calls(shape, _slower(where, factor))
    return Case("blind", run, ((fields,),), is_aligned, is_aligned)


def _cliff(random: Random, shape: _Shape) -> Case:
    """One long event takes 2 to 6 times as long, in one call or at another place in every call."""
    shape = _Shape(**{**vars(shape), "kernel": "one long event"})
    factor = float(random.uniform(2, 6))
    places = [(r, b) for r in range(shape.ranks) for b in range(shape.blocks)]
    order = random.permutation(len(places))
    if random.random() < 0.5:
        rank, block = places[order[0]]
        call = int(random.integers(1, shape.calls))
        fields: Fields = {"kind": "slow", "ranks": (rank,), "blocks": (block,), "calls": (call,)}

        def where(me: Track, name: str, turn: int) -> float:
            return (me.rank, me.block, me.call, name) == (rank, block, call, "math")

    else:
        several = int(random.integers(4, min(len(places), 16) + 1))
        fields = {"kind": "slow", "when": "moving"}

        def where(me: Track, name: str, turn: int) -> float:
            return (me.rank, me.block) == places[order[me.call % several]] and name == "math"

    return Case("cliff", _calls(shape, _slower(where, factor)), ((fields,),))


def _alone(random: Random, shape: _Shape) -> Case:
    """Work that no other place has: a serial part, or a gap before every call's second launch."""
    rank, took = int(random.integers(shape.ranks)), float(random.uniform(4_000, 20_000))
    if random.random() < 0.5:
        shape = _Shape(**{**vars(shape), "kernel": "exchange"})
        fields: tuple[Fields, ...] = ({"ranks": (rank,), "region": "math"},)

        def body(plant_in: bool) -> Body:
            inner = _body(shape, Plant())

            def serial(me: Track) -> Steps:
                if plant_in and me.rank == rank and me.block == 0:
                    yield from Plant().work(me, "math", took)
                yield from inner(me)

            return serial

        def run(present: Present) -> Machine:
            machine = _machine(shape)
            for _ in range(shape.calls):
                machine.call(grid(machine, shape.blocks), body(0 in present))
            return machine

        return Case("alone", run, (fields,))

    def between(present: Present) -> Machine:
        machine = _machine(shape)
        for _ in range(shape.calls):
            first, second = (_body(shape, Plant()) for _ in range(2))
            # Without it, launches follow each other at once: the machine has 1200 ns between them.
            late = dict.fromkeys(range(shape.ranks), took if 0 in present else -1_200.0)
            tracks = [grid(machine, shape.blocks) for _ in range(2)]
            machine.stages([(tracks[0], first, {}), (tracks[1], second, late)])
        return machine

    return Case("alone", between, (({"kind": "between_launches"}, {"kind": "late_start"}),))


def _sizes(random: Random, shape: _Shape) -> Case:
    """Calls of two to four sizes, and a slow rank in all of them."""
    rank, factor = int(random.integers(shape.ranks)), float(random.uniform(1.4, 3))
    sizes = [1.0, *random.uniform(1.5, 6, int(random.integers(1, 4)))]
    cycle = np.arange(shape.calls) % len(sizes)
    order = random.permutation(cycle) if random.random() < 0.5 else cycle

    def size(call: int) -> float:
        return float(sizes[order[call]])

    def plant(present: Present) -> Plant:
        return Plant(
            how=lambda me, _region, _turn: (
                size(me.call) * (factor if 0 in present and me.rank == rank else 1.0)
            )
        )

    fields: Fields = {"kind": "slow", "ranks": (rank,), "blocks": (), "when": "always"}
    is_planted = random.random() < 0.75
    causes = ((fields,),) if is_planted else ()
    return Case("sizes", _calls(shape, plant), causes)


def _hidden(random: Random, shape: _Shape) -> Case:
    """Two unlike causes of about the same size, either of which hides the other."""
    shape = _Shape(**{**vars(shape), "kernel": str(random.choice(["exchange", "met"]))})
    slow, late = (int(rank) for rank in random.choice(shape.ranks, 2, replace=False))
    region, took, times = ("math", 2800, 3) if shape.kernel == "met" else ("load", 1700, 2)
    factor = float(random.uniform(3, 6))
    # In each round one is behind: by the factor of the first round, or by its start.
    late_ns = (factor - 1) * took * float(random.uniform(0.9, 1.1))

    def where(me: Track, name: str, turn: int) -> float:
        return me.rank == slow and name == region and turn < times and turn == 0

    causes: tuple[tuple[Fields, ...], ...] = (
        ({"kind": "slow", "ranks": (slow,)}, {"kind": "slow_events", "ranks": (slow,)}),
        ({"kind": "late_start", "ranks": (late,)},),
    )
    delay = {late: late_ns}
    run = _calls(shape, _slower(where, factor), lambda present, _c: delay if 1 in present else {})
    return Case("hidden", run, causes)


def _order(random: Random, shape: _Shape) -> Case:
    """Links into one rank are slow: the one that is waited for first hides the others."""
    shape = _Shape(**{**vars(shape), "kernel": str(random.choice(["exchange", "gathered"]))})
    end, took = int(random.integers(shape.ranks)), float(random.uniform(6_000, 15_000))
    others = [rank for rank in range(shape.ranks) if rank != end]
    source = int(random.choice(others)) if random.random() < 0.3 else None

    def travel(present: Present) -> Travel | None:
        if 0 not in present:
            return None
        return lambda s, d: 650 + took * (d == end and source in (None, s))

    into: list[Fields] = [
        {"kind": "slow_transfer", "links": ((-1, end),)},
        {"kind": "slow_transfer", "links": tuple((other, end) for other in others)},
    ]
    run = _calls(shape, lambda _present: Plant(), travel=travel)
    if source is None:
        return Case("order", run, (tuple(into),))
    one: list[Fields] = [{"kind": "slow_transfer", "links": ((source, end),)}]
    # What follows a wait for the slow one can be as slow, for all that anyone can see.
    is_first = source == (end + 1) % shape.ranks
    return Case("order", run, (tuple([*one, *into[:1]] if is_first else one),))


def _roles(random: Random, shape: _Shape) -> Case:
    """A region that means two things, or ranks with roles of their own; and a slow rank, or not."""
    is_planted = random.random() < 0.7
    rank, factor = int(random.integers(8)), float(random.uniform(2.5, 5))
    phase = float(random.uniform(3, 6))

    def plant(present: Present) -> Plant:
        def how(me: Track, region: str, turn: int) -> float:
            by_design = phase if region == "math" and turn == 0 else 1.0
            return by_design * (factor if 0 in present and me.rank == rank else 1.0)

        return Plant(how=how)

    def of_roles(planted: Plant) -> Body:
        if shape.kernel == "exchange":
            return bodies.hierarchy(8, 4, shape.blocks, planted)
        if shape.kernel == "chain":
            return bodies.tree(8, shape.blocks, planted)
        if shape.kernel == "met":
            return bodies.met(8 * shape.blocks, planted, 4)
        return bodies.halo(4, 2, shape.blocks, planted, 4)

    def run(present: Present) -> Machine:
        machine = Machine(8, seed=shape.seed, noise=shape.noise)
        for _ in range(shape.calls):
            tracks = grid(machine, shape.blocks)
            machine.call(tracks, of_roles(plant(present)))
        return machine

    fields: Fields = {"kind": "slow", "ranks": (rank,), "blocks": ()}
    return Case("roles", run, ((fields,),) if is_planted else ())


def _position(random: Random, shape: _Shape) -> Case:
    """The last event of a region on every track is slow, or an SM, on which blocks take turns."""
    factor, rounds = float(random.uniform(3, 6)), int(random.integers(9, 14))
    if random.random() < 0.5:

        def last(me: Track, _region: str, turn: int) -> float:
            return turn == rounds - 1

        def at_the_end(present: Present) -> Machine:
            machine = _machine(shape)
            for _ in range(shape.calls):
                plant = _slower(last, factor)(present)
                machine.call(grid(machine, shape.blocks), _alternating(rounds, plant))
            return machine

        return Case("position", at_the_end, (({"region": "math", "position": "last"},),))
    room = shape.blocks + 2
    rank, processor = int(random.integers(shape.ranks)), int(random.integers(room))

    def there(me: Track, _region: str, _turn: int) -> float:
        return (me.rank, me.processor) == (rank, processor)

    def on_processor(present: Present) -> Machine:
        machine = _machine(shape)
        order = np.random.default_rng(shape.seed)
        for _ in range(shape.calls):
            tracks = grid(machine, room)
            for of_rank in range(shape.ranks):
                its = [track for track in tracks if track.rank == of_rank]
                for track, place in zip(its, order.permutation(room).tolist(), strict=True):
                    track.processor = place
            plant = _slower(there, factor)(present)
            machine.call(tracks, bodies.exchange(shape.ranks, room, plant))
        return machine

    fields: Fields = {"kind": "slow", "ranks": (rank,), "processors": (processor,)}
    return Case("position", on_processor, ((fields,),))


def _alternating(rounds: int, plant: Plant) -> Body:
    def body(me: Track) -> Steps:
        for turn in range(rounds):
            yield from Plant().work(me, "load", 500, turn)
            yield from plant.work(me, "math", 900, turn)

    return body


def _across(random: Random, shape: _Shape) -> Case:
    """Calls that follow each other without a barrier: a rank's delay shows in later calls."""
    shape = _Shape(**{**vars(shape), "kernel": str(random.choice(["exchange", "chain"]))})
    rank, factor = int(random.integers(shape.ranks)), float(random.uniform(1.8, 4))
    slow = _slower(lambda me, _name, _turn: me.rank == rank, factor)

    def run(present: Present) -> Machine:
        machine = _machine(shape)
        # Launches of one kernel, each after the one before it on its rank.
        machine.kernels = ["only"] * shape.calls
        body = _body(shape, slow(present))
        machine.stages([(grid(machine, shape.blocks), body, {}) for _ in range(shape.calls)])
        return machine

    fields: Fields = {"kind": "slow", "ranks": (rank,), "blocks": ()}
    return Case("across", run, ((fields,),), is_whole=True)


def _silent(random: Random, shape: _Shape) -> Case:
    """Nothing but noise."""
    is_blind = random.random() < 0.3
    run = _calls(shape, lambda _present: Plant())
    return Case("silent", run, (), not is_blind, not is_blind or random.random() < 0.5)


CLASSES: Final[Mapping[str, Callable[[Random, _Shape], Case]]] = {
    "blind": _blind, "cliff": _cliff, "alone": _alone, "sizes": _sizes, "hidden": _hidden,
    "order": _order, "roles": _roles, "position": _position, "across": _across, "silent": _silent,
}  # fmt: skip
