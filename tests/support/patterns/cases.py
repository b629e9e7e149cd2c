"""The patterns: what is planted, and what the first conclusion has to say.

A pattern is run with what is planted and without; the difference is what it costs. `expected` are
fields of the first finding; of silent ones there must be none. `limit` is the first thing that the
design of a kernel costs, where nothing stands out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from patterns import bodies
from patterns.bodies import Plant, grid
from patterns.machine import Machine, Steps, Track

Run = Callable[[bool], Machine]


@dataclass(frozen=True)
class Pattern:
    """One pattern; see the module. `is_gain_known`: the run without it is the same run otherwise."""

    name: str
    run: Run
    expected: dict[str, object] | None = None
    limit: str | None = None
    is_gain_known: bool = True


PATTERNS: Final[list[Pattern]] = []


def _add(
    name: str,
    run: Run,
    expected: dict[str, object] | None = None,
    limit: str | None = None,
    is_gain_known: bool = True,
) -> None:
    PATTERNS.append(Pattern(name, run, expected, limit, is_gain_known))


@dataclass
class Shape:
    """Sizes of an exchange, and the calls in which something is planted (all by default)."""

    ranks: int = 4
    blocks: int = 6
    calls: int = 12
    seed: int = 1
    chosen: Callable[[int], float] = field(default=lambda _call: 1.0)


def _exchange(shape: Shape, plant: Callable[[float], Plant], noise: float = 0.04) -> Run:
    def run(planted: bool) -> Machine:
        machine = Machine(shape.ranks, seed=shape.seed, noise=noise)
        for call in range(shape.calls):
            weight = shape.chosen(call) if planted else 0.0
            body = bodies.exchange(shape.ranks, shape.blocks, plant(weight))
            machine.call(grid(machine, shape.blocks), body)
        return machine

    return run


def _times(where: Callable[[Track, str, int], bool], factor: float) -> Callable[[float], Plant]:
    return lambda weight: Plant(
        how=lambda me, region, turn: 1 + (factor - 1) * weight * where(me, region, turn)
    )


def _is(
    rank: int | None = None, block: int | None = None, region: str | None = None
) -> Callable[[Track, str, int], bool]:
    return lambda me, name, _turn: (
        rank in (None, me.rank) and block in (None, me.block) and region in (None, name)
    )


_add(
    "one slow block",
    _exchange(Shape(seed=11), _times(_is(2, 4), 2.5)),
    {"kind": "slow", "ranks": (2,), "blocks": (4,), "when": "always"},
)
_add(
    "one slow rank",
    _exchange(Shape(seed=12), _times(_is(1), 1.8)),
    {"kind": "slow", "ranks": (1,), "blocks": ()},
)
_add(
    "one slow region of one rank",
    _exchange(Shape(seed=13), _times(_is(3, None, "load"), 2.6)),
    {"kind": "slow", "ranks": (3,), "blocks": (), "region": "load"},
)
_add(
    "half of the ranks slow",
    _exchange(Shape(ranks=8, blocks=3, seed=14), _times(lambda me, _r, _t: me.rank % 2 == 0, 1.9)),
    {"kind": "slow", "ranks": (0, 2, 4, 6), "blocks": ()},
)
_add(
    "all ranks of one host slow",
    _exchange(Shape(ranks=8, blocks=3, seed=15), _times(lambda me, _r, _t: me.rank >= 4, 1.7)),
    {"kind": "slow", "ranks": (4, 5, 6, 7), "blocks": ()},
)
_add(
    "block 3 of every rank slow",
    _exchange(Shape(seed=16), _times(_is(None, 3), 2.2)),
    {"kind": "slow", "ranks": (), "blocks": (3,)},
)
_add(
    "odd blocks slow",
    _exchange(Shape(blocks=8, seed=17), _times(lambda me, _r, _t: me.block % 2 == 1, 1.8)),
    {"kind": "slow", "ranks": (), "blocks": (1, 3, 5, 7)},
)
_add(
    "one processor slow",
    _exchange(
        Shape(blocks=8, seed=18),
        _times(lambda me, _r, _t: me.rank == 1 and me.block in (2, 6), 2.0),
    ),
    {"kind": "slow", "ranks": (1,), "blocks": (2, 6)},
)
_add(
    "three of twelve calls",
    _exchange(Shape(seed=19, chosen=lambda call: float(call in (3, 7, 8))), _times(_is(2), 2.5)),
    {"kind": "slow", "ranks": (2,), "calls": (3, 7, 8), "when": "sometimes"},
)
_add(
    "one slow call in forty",
    _exchange(
        Shape(blocks=3, calls=40, seed=20, chosen=lambda call: float(call == 17)),
        _times(_is(), 6.0),
    ),
    {"kind": "slow_call", "calls": (17,)},
)
_add(
    "every fifth call slow",
    _exchange(
        Shape(blocks=3, calls=25, seed=21, chosen=lambda call: float(call % 5 == 3)),
        _times(_is(), 2.4),
    ),
    {"kind": "slow_call", "when": "periodic", "period": 5},
)
_add(
    "every fifth call slow on one rank",
    _exchange(
        Shape(blocks=3, calls=25, seed=22, chosen=lambda call: float(call % 5 == 0)),
        _times(_is(0), 2.4),
    ),
    {"kind": "slow", "ranks": (0,), "when": "periodic", "period": 5},
)
_add(
    "growing",
    _exchange(
        Shape(blocks=3, calls=20, seed=23, chosen=lambda call: call / 10), _times(_is(2), 1.8)
    ),
    {"kind": "slow", "ranks": (2,), "when": "growing"},
)
_add(
    "straggler that moves",
    _exchange(
        Shape(seed=24, calls=16),
        _times(lambda me, _r, _t: (me.rank, me.block) == (me.call * 3 % 4, me.call * 5 % 6), 3.0),
    ),
    {"kind": "slow", "when": "moving"},
)
_add(
    "a rank that is slow moves",
    _exchange(Shape(seed=25, calls=16), _times(lambda me, _r, _t: me.rank == me.call * 3 % 4, 2.0)),
    {"kind": "slow", "when": "moving", "blocks": ()},
)
_add(
    "every sixteenth event twenty times slow",
    lambda planted: _sixteenth(planted),
    {"kind": "slow_events", "region": "math"},
)


def _sixteenth(planted: bool) -> Machine:
    machine = Machine(4, seed=26)

    def how(me: Track, region: str, turn: int) -> float:
        key = ("slow", me.call, me.rank, me.block, turn)
        is_slow = planted and region == "math" and machine.random(*key).random() < 1 / 16
        return 20.0 if is_slow else 1.0

    for _ in range(5):
        tracks = grid(machine, 6)
        machine.call(tracks, bodies.experts(4, 6, Plant(how=how), lambda _c, _s, _e: 12))
    return machine


def _late(planted: bool) -> Machine:
    machine = Machine(4, seed=27)
    for _ in range(8):
        late = {3: 14_000.0} if planted else {}
        machine.call(grid(machine, 6), bodies.exchange(4, 6, Plant()), late=late)
    return machine


_add("rank launches late", _late, {"kind": "late_start", "ranks": (3,)})


def _late_alone(planted: bool) -> Machine:
    machine = Machine(4, seed=28)
    plant = Plant()

    def body(me: Track) -> Steps:
        for turn in range(4):
            yield from plant.work(me, "math", 2500, turn)

    for _ in range(8):
        machine.call(grid(machine, 6), body, late={1: 6_000.0} if planted else {})
    return machine


_add("a rank that is late for itself", _late_alone, {"kind": "late_start", "ranks": (1,)})


def _host_late(planted: bool) -> Machine:
    machine = Machine(4, seed=29)
    for _ in range(8):
        tracks = grid(machine, 6)
        first = bodies.exchange(4, 6, Plant(), 1)
        second = bodies.chain(4, 6, Plant())
        late = {2: 15_000.0} if planted else {}
        machine.stages([(tracks, first, {}), (grid(machine, 6), second, late)])
    return machine


_add("the second launch comes late", _host_late, {"kind": "late_start", "ranks": (2,)})


def _links(slow: Callable[[int, int], float], seed: int, ranks: int = 6) -> Run:
    def run(planted: bool) -> Machine:
        machine = Machine(ranks, seed=seed)

        def travel(src: int, dst: int) -> float:
            return 650.0 + 11_000.0 * planted * slow(src, dst)

        for _ in range(8):
            machine.call(grid(machine, 4), bodies.exchange(ranks, 4, Plant()), travel=travel)
        return machine

    return run


_add(
    "one slow link",
    _links(lambda s, d: (s, d) == (1, 4), 30),
    {"kind": "slow_transfer", "link": (1, 4)},
)
_add(
    "two slow links into one rank",
    # The second one takes longer: where it does not, nobody ever waits for it.
    _links(lambda s, d: {(1, 4): 1.0, (3, 4): 1.3}.get((s, d), 0.0), 31),
    {"kind": "slow_transfer", "links": ((1, 4), (3, 4))},
)
_add(
    "all links out of a rank slow",
    _links(lambda s, _d: s == 2, 32),
    {"kind": "slow_transfer", "link": (2, -1)},
)
_add(
    "links between two hosts slow",
    _links(lambda s, d: (s < 3) != (d < 3), 33),
    {"kind": "slow_transfer", "links": tuple(
        (s, d) for s in range(6) for d in range(6) if (s < 3) != (d < 3)
    )},
)  # fmt: skip


def _ring(planted: bool) -> Machine:
    machine = Machine(4, seed=34)
    plant = Plant(idle=lambda me, r: 9_000.0 if planted and me.rank == 1 and r == "push" else 0.0)
    for _ in range(6):
        machine.call(grid(machine, 4), bodies.chain(4, 4, plant))
    return machine


_add(
    "ring with idle gaps before sends", _ring, {"kind": "idle_gap", "ranks": (1,), "region": "push"}
)


def _ring_once(planted: bool) -> Machine:
    machine = Machine(5, seed=35)

    def idle(me: Track, region: str) -> float:
        return 40_000.0 if planted and (me.rank, me.block) == (2, 1) and region == "load" else 0.0

    for _ in range(6):
        machine.call(grid(machine, 4), bodies.chain(5, 4, Plant(idle=idle)))
    return machine


_add(
    "a block of a ring begins late", _ring_once, {"kind": "idle_gap", "ranks": (2,), "blocks": (1,)}
)


def _hierarchy(how: Callable[[Track, str, int], bool], seed: int, factor: float) -> Run:
    def run(planted: bool) -> Machine:
        machine = Machine(8, seed=seed)
        plant = _times(how, factor)(float(planted))
        for _ in range(8):
            machine.call(grid(machine, 4), bodies.hierarchy(8, 4, 4, plant))
        return machine

    return run


_add(
    "a member of a hierarchy is slow",
    _hierarchy(_is(6, None, "load"), 36, 3.5),
    {"kind": "slow", "ranks": (6,), "region": "load"},
)
_add(
    "a leader of a hierarchy is slow",
    _hierarchy(_is(4), 37, 2.5),
    {"kind": "slow", "ranks": (4,)},
)
_add("a hierarchy as it should be", _hierarchy(_is(), 38, 1.0))


def _hot(shape: int, seed: int) -> Run:
    def items(planted: bool) -> Callable[[int, int, int], int]:
        def count(call: int, src: int, expert: int) -> int:
            if not planted:
                return 4
            if shape == 0:
                return 12 if src == 3 else 4
            if shape == 1:
                return 12 if expert == 2 else 4
            return 12 if expert == (2 * call + 1) % 4 else 4

        return count

    def run(planted: bool) -> Machine:
        machine = Machine(4, seed=seed)
        for _ in range(8):
            machine.call(grid(machine, 4), bodies.experts(4, 4, Plant(), items(planted)))
        return machine

    return run


_add(
    "one source with three times the tokens",
    _hot(0, 39),
    {"kind": "uneven_work", "ranks": (3,)},
    is_gain_known=False,
)
_add("a hot expert", _hot(1, 40), {"kind": "uneven_work", "ranks": (2,)}, is_gain_known=False)
_add(
    "a hot expert that moves",
    _hot(2, 41),
    {"kind": "uneven_work", "when": "moving"},
    is_gain_known=False,
)


def _halo(planted: bool) -> Machine:
    machine = Machine(6, seed=42)
    plant = _times(_is(4, None, "math"), 1.7)(float(planted))
    for _ in range(8):
        machine.call(grid(machine, 4), bodies.halo(3, 2, 4, plant))
    return machine


_add("a rank of a halo is slow", _halo, {"kind": "slow", "ranks": (4,), "region": "math"})


def _pipeline(planted: bool) -> Machine:
    machine = Machine(5, seed=43)
    plant = _times(_is(2), 1.8)(float(planted))
    for _ in range(8):
        machine.call(grid(machine, 4), bodies.stages(5, 4, plant))
    return machine


_add("a stage of a pipeline is slow", _pipeline, {"kind": "slow", "ranks": (2,)})
_add("a pipeline as it should be", lambda _planted: _pipeline(False))


def _tree(planted: bool) -> Machine:
    machine = Machine(8, seed=44)
    plant = _times(_is(3, None, "load"), 3.0)(float(planted))
    for _ in range(8):
        machine.call(grid(machine, 3), bodies.tree(8, 3, plant))
    return machine


_add("a leaf of a tree is slow", _tree, {"kind": "slow", "ranks": (3,), "region": "load"})
_add("a tree as it should be", lambda _planted: _tree(False))


def _queue(planted: bool) -> Machine:
    machine = Machine(4, seed=45)
    random = machine.random("entries")
    for _ in range(6):
        lengths = [list(random.uniform(800, 1600, 40)) for _ in range(4)]
        if planted:
            lengths[1] += list(random.uniform(800, 1600, 60))
        entries = [deque(of_rank) for of_rank in lengths]
        machine.call(grid(machine, 5), bodies.workers(entries, Plant()))
    return machine


_add(
    "a work queue with more entries on one rank",
    _queue,
    {"kind": "uneven_work", "ranks": (1,)},
    is_gain_known=False,
)


def _roles(planted: bool) -> Machine:
    machine = Machine(4, seed=46)
    plant = _times(_is(1, None, "load"), 2.4)(float(planted))
    for _ in range(8):
        machine.call(grid(machine, 3, 3), bodies.roles(4, 3, plant))
    return machine


_add("producer warps of a rank slow", _roles, {"kind": "slow", "ranks": (1,), "region": "load"})


def _locks(planted: bool) -> Machine:
    machine = Machine(3, seed=47)
    for _ in range(6):
        body = bodies.guarded(12, Plant(), 900 if planted else 20)
        machine.call(grid(machine, 12), body)
    return machine


_add("a lock handed on", _locks, limit="lock", is_gain_known=False)


def _met(planted: bool) -> Machine:
    machine = Machine(4, seed=48)
    plant = _times(_is(2, 5), 2.5)(float(planted))
    for _ in range(8):
        machine.call(grid(machine, 6), bodies.met(24, plant))
    return machine


_add("a barrier with one late block", _met, {"kind": "slow", "ranks": (2,), "blocks": (5,)})


def _waves(planted: bool) -> Machine:
    machine = Machine(2, seed=49, room=8)
    blocks = 9 if planted else 8

    def body(me: Track) -> Steps:
        yield from Plant().work(me, "load", 2000)
        yield from Plant().work(me, "math", 3000)

    for _ in range(8):
        machine.call(grid(machine, blocks), body)
    return machine


_add("one block more than fits", _waves, limit="waves", is_gain_known=False)


def _epilogue(_planted: bool) -> Machine:
    machine = Machine(4, seed=50)
    for _ in range(8):
        machine.call(grid(machine, 6), bodies.gathered(4, 6, Plant(), 6000))
    return machine


_add("a long epilogue after the last wait", _epilogue)
_add("30 % of noise", _exchange(Shape(seed=51, calls=16), _times(_is(), 1.0), 0.30))


def _transfers(_planted: bool) -> Machine:
    machine = Machine(4, seed=52, travel_ns=14_000)
    for _ in range(8):
        machine.call(grid(machine, 6), bodies.exchange(4, 6, Plant()))
    return machine


_add("slow transfers everywhere", _transfers, limit="transfers")


def _order(_planted: bool) -> Machine:
    """The first peer in the order of waits comes late in one block, the second in another: chance,
    and a new one each time."""
    machine = Machine(5, seed=53)

    def how(me: Track, region: str, _turn: int) -> float:
        if region != "load":
            return 1.0
        return float(machine.random("order", me.call, me.rank, me.block).choice([1.0, 9.0]))

    for _ in range(8):
        machine.call(grid(machine, 5), bodies.gathered(5, 5, Plant(how=how), 200))
    return machine


_add("waits in a fixed order", _order, limit="arrival_order", is_gain_known=False)
_add(
    "two causes",
    lambda planted: _two(planted),
    {"kind": "late_start", "ranks": (0,)},
    is_gain_known=False,
)


def _two(planted: bool) -> Machine:
    machine = Machine(4, seed=54)
    plant = _times(_is(2, 1), 2.5)(float(planted))
    for _ in range(8):
        late = {0: 16_000.0} if planted else {}
        machine.call(grid(machine, 6), bodies.exchange(4, 6, plant), late=late)
    return machine


def _launch_and_straggler(planted: bool) -> Machine:
    """A few microseconds of launch skew beside a straggler that costs much more."""
    machine = Machine(4, seed=55)
    plant = _times(_is(3, 2), 4.0)(float(planted))
    for _ in range(8):
        machine.call(grid(machine, 6), bodies.exchange(4, 6, plant), late={1: 1_500.0})
    return machine


_add(
    "a straggler beside launch skew",
    _launch_and_straggler,
    {"kind": "slow", "ranks": (3,), "blocks": (2,)},
)
