"""Kernels that patterns are planted in. `how(track, region, turn)` is by what factor a step takes
longer, `idle(track, region)` how long a track does nothing recorded before it, `items(rank, peer)`
how many items go from rank to peer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from patterns.machine import Await, Drop, Grab, Idle, Machine, Meet, Pop, Put, Steps, Track, Work

How = Callable[[Track, str, int], float]
Pause = Callable[[Track, str], float]


@dataclass(frozen=True)
class Plant:
    """What is wrong; by default nothing."""

    how: How = lambda _track, _region, _turn: 1.0
    idle: Pause = lambda _track, _region: 0.0

    def work(self, me: Track, region: str, ns: float, turn: int = 0) -> Steps:
        """Idle time, then work."""
        pause = self.idle(me, region)
        if pause:
            yield Idle(pause)
        yield Work(region, ns * self.how(me, region, turn))

    def put(self, me: Track, dst: int, slot: int, region: str = "push", turn: int = 0) -> Steps:
        """Idle time, then a send."""
        pause = self.idle(me, region)
        if pause:
            yield Idle(pause)
        yield Put(region, dst, slot, 350 * self.how(me, region, turn))


def grid(machine: Machine, blocks: int, warps: int = 0) -> list[Track]:
    """A track per block, or per warp, of every rank."""
    machine.num_blocks = blocks
    return [
        Track(rank, block, warp)
        for rank in range(machine.num_ranks)
        for block in range(blocks)
        for warp in (range(warps) if warps else (-1,))
    ]


def exchange(ranks: int, blocks: int, plant: Plant, rounds: int = 2) -> Callable[[Track], Steps]:
    """Every block pushes to the block of its number on every other rank and pulls from there."""

    def body(me: Track) -> Steps:
        for turn in range(rounds):
            yield from plant.work(me, "load", 1700, turn)
            peers = [(me.rank + i) % ranks for i in range(1, ranks)]
            for peer in peers:
                yield from plant.put(me, peer, turn * blocks + me.block, turn=turn)
            for peer in peers:
                yield Await("pull", peer, turn * blocks + me.block)
                yield from plant.work(me, "sum", 500, turn)
        yield from plant.work(me, "store", 1500)

    return body


def chain(ranks: int, blocks: int, plant: Plant) -> Callable[[Track], Steps]:
    """A ring all-reduce of `ranks - 1` steps in every block."""

    def body(me: Track) -> Steps:
        yield from plant.work(me, "load", 1200)
        for step in range(ranks - 1):
            slot = step * blocks + me.block
            yield from plant.put(me, (me.rank + 1) % ranks, slot, turn=step)
            yield Await("pull", (me.rank - 1) % ranks, slot)
            yield from plant.work(me, "sum", 800, step)

    return body


def hierarchy(ranks: int, per_host: int, blocks: int, plant: Plant) -> Callable[[Track], Steps]:
    """A hierarchical all-reduce: sum in the host's first rank, a ring over hosts, and out again."""
    hosts = ranks // per_host

    def body(me: Track) -> Steps:
        leader = me.rank - me.rank % per_host
        yield from plant.work(me, "load", 1500)
        if me.rank != leader:
            yield from plant.put(me, leader, me.block)
            yield Await("up-wait", leader, me.block)
        else:
            for member in range(leader + 1, leader + per_host):
                yield Await("pull", member, me.block)
                yield from plant.work(me, "sum", 400)
            for step in range(hosts - 1):
                slot = (step + 1) * blocks + me.block
                yield from plant.put(me, (leader + per_host) % ranks, slot)
                yield Await("pull", (leader - per_host) % ranks, slot)
                yield from plant.work(me, "sum", 400)
            for member in range(leader + 1, leader + per_host):
                yield from plant.put(me, member, me.block, "up")
        yield from plant.work(me, "store", 900)

    return body


def experts(
    ranks: int, blocks: int, plant: Plant, items: Callable[[int, int, int], int]
) -> Callable[[Track], Steps]:
    """Tokens go to experts, are worked on there and come back; `items(call, source, expert)` tokens each. Blocks
    of a rank share its tokens, received ones too, one after the other."""

    def body(me: Track) -> Steps:
        yield from plant.work(me, "load", 700)
        out = [
            (dst, i) for i in range(64) for dst in range(ranks) if i < items(me.call, me.rank, dst)
        ]
        come = [
            (src, i) for i in range(64) for src in range(ranks) if i < items(me.call, src, me.rank)
        ]
        for dst, i in out[me.block :: blocks]:
            yield from plant.put(me, dst, i)
        for turn, (src, i) in enumerate(come[me.block :: blocks]):
            yield Await("pull", src, i)
            yield from plant.work(me, "math", 1400, turn)
            yield from plant.put(me, src, i, "up")
        for dst, i in out[me.block :: blocks]:
            yield Await("up-wait", dst, i)
            yield from plant.work(me, "sum", 300)

    return body


def halo(
    width: int, height: int, blocks: int, plant: Plant, rounds: int = 3, inner_ns: float = 0
) -> Callable[[Track], Steps]:
    """Ranks on a plane that exchange their edges with four neighbours, without wrapping around, and
    work in between for so long."""

    def body(me: Track) -> Steps:
        row, column = divmod(me.rank, width)
        near = [
            (r, c)
            for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
            if 0 <= r < height and 0 <= c < width
        ]
        for turn in range(rounds):
            yield from plant.work(me, "math", 2600, turn)
            for r, c in near:
                yield from plant.put(me, r * width + c, turn * blocks + me.block)
            if inner_ns:
                yield from plant.work(me, "sum", inner_ns, turn)
            for r, c in near:
                yield Await("pull", r * width + c, turn * blocks + me.block)
        yield from plant.work(me, "store", 600)

    return body


def stages(
    ranks: int,
    blocks: int,
    plant: Plant,
    parts: int = 4,
    layers: Callable[[int, int], int] = lambda _rank, _part: 1,
) -> Callable[[Track], Steps]:
    """A pipeline: every rank takes parts from the one before it and hands them to the next one. `layers(rank, part)`
    are its steps for a part."""

    def body(me: Track) -> Steps:
        for part in range(parts):
            slot = part * blocks + me.block
            if me.rank:
                yield Await("pull", me.rank - 1, slot)
            for _ in range(layers(me.rank, part)):
                yield from plant.work(me, "math", 1800, part)
            if me.rank + 1 < ranks:
                yield from plant.put(me, me.rank + 1, slot)

    return body


def tree(ranks: int, blocks: int, plant: Plant) -> Callable[[Track], Steps]:
    """A sum to rank 0 and its result back, over a binomial tree."""

    def body(me: Track) -> Steps:
        yield from plant.work(me, "load", 1600)
        step = 1
        while step < ranks and me.rank % (2 * step) == 0:
            if me.rank + step < ranks:
                yield Await("pull", me.rank + step, me.block)
                yield from plant.work(me, "sum", 600)
            step *= 2
        if me.rank:
            yield from plant.put(me, me.rank - step, me.block)
            yield Await("up-wait", me.rank - step, me.block)
        step //= 2
        while step:
            if me.rank + step < ranks:
                yield from plant.put(me, me.rank + step, me.block, "up")
            step //= 2
        yield from plant.work(me, "store", 700)

    return body


def workers(entries: list[deque[float]], plant: Plant) -> Callable[[Track], Steps]:
    """Blocks take entries from the queue of their rank until it is empty; then all meet."""

    def body(me: Track) -> Steps:
        turn = 0
        while (ns := (yield Pop(entries[me.rank]))) is not None:
            yield from plant.work(me, "math", ns, turn)
            turn += 1

    return body


def roles(ranks: int, blocks: int, plant: Plant, rounds: int = 6) -> Callable[[Track], Steps]:
    """In every block warp 0 loads, warp 1 computes and warp 2 stores and pushes to the next rank, one part ahead."""

    def slot(me: Track, turn: int, hand: int) -> int:
        return ((turn * blocks) + me.block) * 4 + hand

    def body(me: Track) -> Steps:
        for turn in range(rounds):
            if me.warp == 0:
                if turn >= 2:
                    yield Await("full", me.rank, slot(me, turn - 2, 2))
                yield from plant.work(me, "load", 900, turn)
                yield Put("fill", me.rank, slot(me, turn, 0), 60)
            elif me.warp == 1:
                yield Await("full", me.rank, slot(me, turn, 0))
                yield from plant.work(me, "math", 1000, turn)
                yield Put("fill", me.rank, slot(me, turn, 1), 60)
                yield Put("fill", me.rank, slot(me, turn, 2), 60)
            else:
                yield Await("full", me.rank, slot(me, turn, 1))
                yield from plant.put(me, (me.rank + 1) % ranks, turn * blocks + me.block)
        if me.warp == 2:
            for turn in range(rounds):
                yield Await("pull", (me.rank - 1) % ranks, turn * blocks + me.block)

    return body


def guarded(blocks: int, plant: Plant, held_ns: float) -> Callable[[Track], Steps]:
    """Blocks compute and add under a lock of their rank, then meet."""

    def body(me: Track) -> Steps:
        yield from plant.work(me, "math", 2500)
        yield Grab(("lock", me.rank))
        yield from plant.work(me, "sum", held_ns)
        yield Drop(("lock", me.rank))
        yield from plant.work(me, "store", 800)

    return body


def met(count: int, plant: Plant, rounds: int = 3) -> Callable[[Track], Steps]:
    """Everybody computes and meets everybody, several times."""

    def body(me: Track) -> Steps:
        for turn in range(rounds):
            yield from plant.work(me, "math", 2800, turn)
            yield Meet(turn, count)
        yield from plant.work(me, "store", 500)

    return body


def gathered(ranks: int, blocks: int, plant: Plant, epilogue_ns: float) -> Callable[[Track], Steps]:
    """Push to all, take what comes in a fixed order, and finish once all is there."""

    def body(me: Track) -> Steps:
        yield from plant.work(me, "load", 1500)
        others = [(me.rank + i) % ranks for i in range(1, ranks)]
        for peer in others:
            yield from plant.put(me, peer, me.block)
        for peer in others:
            yield Await("pull", peer, me.block)
            yield from plant.work(me, "sum", 900)
        yield from plant.work(me, "math", epilogue_ns)

    return body
