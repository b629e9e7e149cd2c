"""The patterns: what is planted, and what the first conclusion has to say.

A pattern is run with what is planted and without; the difference is what it costs. `expected` are
fields of the first finding; of silent ones there must be none. `limit` is the first thing that the
design of a kernel costs, where nothing stands out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from patterns import bodies
from patterns.bodies import How, Plant, grid
from patterns.machine import Body, Machine, Steps, Track, Travel

Run = Callable[[bool], Machine]
Fields = dict[str, object]


@dataclass(frozen=True)
class Pattern:
    """One pattern; see the module. `is_gain_known`: the run without it is the same run otherwise."""

    name: str
    run: Run
    expected: Fields | None = None
    limit: str | None = None
    is_gain_known: bool = True


def _calls(
    machine: Callable[[], Machine],
    blocks: int,
    body: Callable[[float], Body],
    calls: int = 8,
    chosen: Callable[[int], float] = lambda _call: 1.0,
    warps: int = 0,
    late: dict[int, float] | None = None,
    travel: Travel | None = None,
) -> Run:
    """Calls of a body, which is told how much of what is planted is in the call. Planted are, too, the
    ranks that are `late`, and by how much longer data travels."""

    def run(planted: bool) -> Machine:
        made = machine()
        for call in range(calls):
            weight = chosen(call) if planted else 0.0
            longer = (lambda s, d: 650.0 + travel(s, d)) if travel and weight else None
            tracks = grid(made, blocks, warps)
            made.call(tracks, body(weight), late=late if weight else None, travel=longer)
        return made

    return run


def _of(ranks: int, seed: int, noise: float = 0.04) -> Callable[[], Machine]:
    return lambda: Machine(ranks, seed=seed, noise=noise)


def _exchange(
    seed: int,
    plant: Callable[[float], Plant] = lambda _weight: Plant(),
    ranks: int = 4,
    blocks: int = 6,
    calls: int = 12,
    chosen: Callable[[int], float] = lambda _call: 1.0,
    noise: float = 0.04,
) -> Run:
    def body(weight: float) -> Body:
        return bodies.exchange(ranks, blocks, plant(weight))

    return _calls(_of(ranks, seed, noise), blocks, body, calls, chosen)


def _times(where: How, factor: float) -> Callable[[float], Plant]:
    return lambda weight: Plant(
        how=lambda me, region, turn: 1 + (factor - 1) * weight * where(me, region, turn)
    )


def _is(rank: int | None = None, block: int | None = None, region: str | None = None) -> How:
    return lambda me, name, _turn: (
        rank in (None, me.rank) and block in (None, me.block) and region in (None, name)
    )


def _ranks(*those: int) -> How:
    return lambda me, _region, _turn: me.rank in those


def _in(*those: int) -> Callable[[int], float]:
    return lambda call: float(call in those)


def _said(kind: str, **fields: object) -> Fields:
    return {"kind": kind, **fields}


def _slow(**fields: object) -> Fields:
    return _said("slow", **fields)


def _sixteenth(weight: float) -> Body:
    random = Machine(4, seed=26).random

    def how(me: Track, region: str, turn: int) -> float:
        key = ("slow", me.call, me.rank, me.block, turn)
        return 20.0 if weight and region == "math" and random(*key).random() < 1 / 16 else 1.0

    return bodies.experts(4, 6, Plant(how=how), lambda _c, _s, _e: 12)


def _layers(seed: int, more: Callable[[int, int], int]) -> Run:
    """A pipeline of 4 stages with 4 layers each, and `more(rank, part)`, for 6 parts."""

    def body(weight: float) -> Body:
        def layers(rank: int, part: int) -> int:
            return 4 + more(rank, part) * (weight > 0)

        return bodies.stages(4, 2, Plant(), 6, layers)

    return _calls(_of(4, seed), 2, body)


def _works(*steps: tuple[str, float]) -> Callable[[float], Body]:
    """Blocks that work and have nothing to do with each other."""

    def body(me: Track) -> Steps:
        for turn, (region, ns) in enumerate(steps):
            yield from Plant().work(me, region, ns, turn)

    return lambda _weight: body


def _host_late(planted: bool) -> Machine:
    machine = Machine(4, seed=29)
    for _ in range(8):
        first, second = bodies.exchange(4, 6, Plant(), 1), bodies.chain(4, 6, Plant())
        late = {2: 15_000.0} if planted else {}
        machine.stages([(grid(machine, 6), first, {}), (grid(machine, 6), second, late)])
    return machine


def _links(slow: Travel, seed: int) -> Run:
    plain = bodies.exchange(6, 4, Plant())
    return _calls(_of(6, seed), 4, lambda _weight: plain, travel=lambda s, d: 11_000.0 * slow(s, d))


def _ring(ranks: int, seed: int, idle: Callable[[Track, str], float]) -> Run:
    def body(weight: float) -> Body:
        return bodies.chain(ranks, 4, Plant(idle=lambda me, region: weight * idle(me, region)))

    return _calls(_of(ranks, seed), 4, body, calls=6)


def _hierarchy(seed: int, plant: Callable[[float], Plant]) -> Run:
    return _calls(_of(8, seed), 4, lambda weight: bodies.hierarchy(8, 4, 4, plant(weight)))


def _hot(seed: int, is_hot: Callable[[int, int, int], bool]) -> Run:
    """Three times the tokens where `is_hot` of call, source and expert."""

    def body(weight: float) -> Body:
        return bodies.experts(4, 4, Plant(), lambda *of: 12 if weight and is_hot(*of) else 4)

    return _calls(_of(4, seed), 4, body)


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


def _waves(planted: bool) -> Machine:
    machine = Machine(2, seed=49, room=8)
    for _ in range(8):
        body = _works(("load", 2000), ("math", 3000))(1.0)
        machine.call(grid(machine, 9 if planted else 8), body)
    return machine


def _order(_weight: float) -> Body:
    """The first peer in the order of waits comes late in one block, the second in another: chance,
    and a new one each time."""
    random = Machine(5, seed=53).random

    def how(me: Track, region: str, _turn: int) -> float:
        if region != "load":
            return 1.0
        return float(random("order", me.call, me.rank, me.block).choice([1.0, 9.0]))

    return bodies.gathered(5, 5, Plant(how=how), 200)


def _launch_and_straggler(planted: bool) -> Machine:
    """A few microseconds of launch skew beside a straggler that costs much more."""
    machine = Machine(4, seed=55)
    plant = _times(_is(3, 2), 4.0)(float(planted))
    for _ in range(8):
        machine.call(grid(machine, 6), bodies.exchange(4, 6, plant), late={1: 1_500.0})
    return machine


_BETWEEN_HOSTS: Final = tuple((s, d) for s in range(6) for d in range(6) if (s < 3) != (d < 3))
_LONG_SUMS: Final = Plant(how=lambda _me, region, _turn: 3.0 if region == "sum" else 1.0)
# The second one takes longer: where it does not, nobody ever waits for it.
_INTO_4: Final = {(1, 4): 1.0, (3, 4): 1.3}

PATTERNS: Final = [
    Pattern("one slow block", _exchange(11, _times(_is(2, 4), 2.5)), _slow(ranks=(2,), blocks=(4,), when="always")),
    Pattern("one slow rank", _exchange(12, _times(_is(1), 1.8)), _slow(ranks=(1,), blocks=())),
    Pattern("one slow region of one rank", _exchange(13, _times(_is(3, None, "load"), 2.6)),
        _slow(ranks=(3,), blocks=(), region="load")),
    Pattern("half of the ranks slow", _exchange(14, _times(_ranks(0, 2, 4, 6), 1.9), ranks=8, blocks=3),
        _slow(ranks=(0, 2, 4, 6), blocks=())),
    Pattern("all ranks of one host slow", _exchange(15, _times(_ranks(4, 5, 6, 7), 1.7), ranks=8, blocks=3),
        _slow(ranks=(4, 5, 6, 7), blocks=())),
    Pattern("block 3 of every rank slow", _exchange(16, _times(_is(None, 3), 2.2)), _slow(ranks=(), blocks=(3,))),
    Pattern("odd blocks slow", _exchange(17, _times(lambda me, _r, _t: me.block % 2 == 1, 1.8), blocks=8),
        _slow(ranks=(), blocks=(1, 3, 5, 7))),
    Pattern("one processor slow",
        _exchange(18, _times(lambda me, _r, _t: me.rank == 1 and me.block in (2, 6), 2.0), blocks=8),
        _slow(ranks=(1,), blocks=(2, 6))),
    Pattern("three of twelve calls", _exchange(19, _times(_is(2), 2.5), chosen=_in(3, 7, 8)),
        _slow(ranks=(2,), calls=(3, 7, 8), when="sometimes")),
    Pattern("one slow call in forty", _exchange(20, _times(_is(), 6.0), blocks=3, calls=40, chosen=_in(17)),
        _said("slow_call", calls=(17,))),
    Pattern("every fifth call slow",
        _exchange(21, _times(_is(), 2.4), blocks=3, calls=25, chosen=_in(*range(3, 25, 5))),
        _said("slow_call", when="periodic", period=5)),
    Pattern("every fifth call slow on one rank",
        _exchange(22, _times(_is(0), 2.4), blocks=3, calls=25, chosen=_in(*range(0, 25, 5))),
        _slow(ranks=(0,), when="periodic", period=5)),
    Pattern("growing", _exchange(23, _times(_is(2), 1.8), blocks=3, calls=20, chosen=lambda call: call / 10),
        _slow(ranks=(2,), when="growing")),
    Pattern("straggler that moves",
        _exchange(24, _times(lambda me, *_: (me.rank, me.block) == (me.call * 3 % 4, me.call * 5 % 6), 3.0), calls=16),
        _slow(when="moving")),
    Pattern("a rank that is slow moves",
        _exchange(25, _times(lambda me, *_: me.rank == me.call * 3 % 4, 2.0), calls=16),
        _slow(when="moving", blocks=())),
    Pattern("every sixteenth event twenty times slow", _calls(_of(4, 26), 6, _sixteenth, calls=5),
        _said("slow_events", region="math")),
    Pattern("rank launches late",
        _calls(_of(4, 27), 6, lambda _w: bodies.exchange(4, 6, Plant()), late={3: 14_000.0}),
        _said("late_start", ranks=(3,))),
    Pattern("a rank that is late for itself",
        _calls(_of(4, 28), 6, _works(*[("math", 2500.0)] * 4), late={1: 6_000.0}), _said("late_start", ranks=(1,))),
    Pattern("the second launch comes late", _host_late, _said("late_start", ranks=(2,))),
    Pattern("one slow link", _links(lambda s, d: (s, d) == (1, 4), 30), _said("slow_transfer", link=(1, 4))),
    Pattern("one slow link where other waits follow long work",
        _calls(_of(6, 56), 4, lambda _w: bodies.gathered(6, 4, _LONG_SUMS, 0), travel=lambda s, d: 6e3 * ((s, d) == (2, 1))),
        _said("slow_transfer", link=(2, 1))),
    Pattern("one link slow both ways beside links that nobody waits for",
        _calls(_of(7, 57), 4, lambda _w: bodies.halo(7, 1, 4, Plant(), inner_ns=1300),
            travel=lambda s, d: 3e3 * ({s, d} == {5, 6})),
        _said("slow_transfer", links=((5, 6), (6, 5)))),
    Pattern("two slow links into one rank", _links(lambda s, d: _INTO_4.get((s, d), 0.0), 31),
        _said("slow_transfer", links=tuple(_INTO_4))),
    Pattern("all links out of a rank slow", _links(lambda s, _d: s == 2, 32), _said("slow_transfer", link=(2, -1))),
    Pattern("links between two hosts slow", _links(lambda s, d: (s, d) in _BETWEEN_HOSTS, 33),
        _said("slow_transfer", links=_BETWEEN_HOSTS)),
    Pattern("ring with idle gaps before sends",
        _ring(4, 34, lambda me, region: 9_000.0 * (me.rank == 1 and region == "push")),
        _said("idle_gap", ranks=(1,), region="push")),
    Pattern("a block of a ring begins late",
        _ring(5, 35, lambda me, of: 40_000.0 * ((me.rank, me.block, of) == (2, 1, "load"))),
        _said("idle_gap", ranks=(2,), blocks=(1,))),
    Pattern("a member of a hierarchy is slow", _hierarchy(36, _times(_is(6, None, "load"), 3.5)),
        _slow(ranks=(6,), region="load")),
    Pattern("a leader of a hierarchy is slow", _hierarchy(37, _times(_is(4), 2.5)), _slow(ranks=(4,))),
    Pattern("a hierarchy as it should be", _hierarchy(38, lambda _weight: Plant())),
    Pattern("one source with three times the tokens", _hot(39, lambda _call, src, _expert: src == 3),
        _said("uneven_work", ranks=(3,)), is_gain_known=False),
    Pattern("a hot expert", _hot(40, lambda _call, _src, expert: expert == 2), _said("uneven_work", ranks=(2,)),
        is_gain_known=False),
    Pattern("a hot expert that moves", _hot(41, lambda call, _src, expert: expert == (2 * call + 1) % 4),
        _said("uneven_work", when="moving"), is_gain_known=False),
    Pattern("a rank of a halo is slow",
        _calls(_of(6, 42), 4, lambda w: bodies.halo(3, 2, 4, _times(_is(4, None, "math"), 1.7)(w))),
        _slow(ranks=(4,), region="math")),
    Pattern("a stage of a pipeline is slow",
        _calls(_of(5, 43), 4, lambda w: bodies.stages(5, 4, _times(_is(2), 1.8)(w))), _slow(ranks=(2,))),
    Pattern("the first stage of a pipeline is slow",
        _calls(_of(4, 55), 2, lambda w: bodies.stages(4, 2, _times(_is(0), 1.4)(w), 6)), _slow(ranks=(0,))),
    Pattern("a stage of a pipeline has more layers", _layers(56, lambda rank, _part: 3 * (rank == 1)),
        _said("uneven_work", ranks=(1,), region="math")),
    Pattern("a stage of a pipeline has more layers for the last part",
        _layers(57, lambda rank, part: 16 * (rank == 1 and part == 5)),
        _said("uneven_work", ranks=(1,), region="math")),
    Pattern("a pipeline as it should be", _calls(_of(5, 43), 4, lambda _w: bodies.stages(5, 4, Plant()))),
    Pattern("a leaf of a tree is slow",
        _calls(_of(8, 44), 3, lambda w: bodies.tree(8, 3, _times(_is(3, None, "load"), 3.0)(w))),
        _slow(ranks=(3,), region="load")),
    Pattern("a tree as it should be", _calls(_of(8, 44), 3, lambda _w: bodies.tree(8, 3, Plant()))),
    Pattern("a work queue with more entries on one rank", _queue, _said("uneven_work", ranks=(1,)),
        is_gain_known=False),
    Pattern("producer warps of a rank slow",
        _calls(_of(4, 46), 3, lambda w: bodies.roles(4, 3, _times(_is(1, None, "load"), 2.4)(w)), warps=3),
        _slow(ranks=(1,), region="load")),
    Pattern("a lock handed on",
        _calls(_of(3, 47), 12, lambda w: bodies.guarded(12, Plant(), 900 if w else 20), calls=6), limit="lock",
        is_gain_known=False),
    Pattern("a barrier with one late block",
        _calls(_of(4, 48), 6, lambda w: bodies.met(24, _times(_is(2, 5), 2.5)(w))), _slow(ranks=(2,), blocks=(5,))),
    Pattern("one block more than fits", _waves, limit="waves", is_gain_known=False),
    Pattern("a long epilogue after the last wait",
        _calls(_of(4, 50), 6, lambda _w: bodies.gathered(4, 6, Plant(), 6000))),
    Pattern("30 % of noise", _exchange(51, calls=16, noise=0.30)),
    Pattern("slow transfers everywhere",
        _calls(lambda: Machine(4, seed=52, travel_ns=14_000), 6, lambda _w: bodies.exchange(4, 6, Plant())),
        limit="transfers"),
    Pattern("waits in a fixed order", _calls(_of(5, 53), 5, _order), limit="arrival_order", is_gain_known=False),
    Pattern("two causes",
        _calls(_of(4, 54), 6, lambda w: bodies.exchange(4, 6, _times(_is(2, 1), 2.5)(w)), late={0: 16_000.0}),
        _said("late_start", ranks=(0,)), is_gain_known=False),
    Pattern("a straggler beside launch skew", _launch_and_straggler, _slow(ranks=(3,), blocks=(2,))),
]  # fmt: skip
