"""Programs of collective kernels: who sends to whom, and who waits for whom.

Every function takes sizes and gives the program of one call. Causes add work through `items(rank,
peer)`, the number of items that a rank sends to a peer, and `extra(rank, block)`, the additional
items of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from simulation.program import Program, ProgramWriter, TrackWriter

Items = Callable[[int, int], int]
Extra = Callable[[int, int], int]


@dataclass(frozen=True)
class Sizes:
    """How large a program is. `items` is per pair of ranks, per block or per step, as the topology has it."""

    num_ranks: int = 4
    num_blocks: int = 8
    items: int = 4


@dataclass(frozen=True)
class Load:
    """What causes add to a program: items from a rank to a peer, and additional items of a
    block."""

    items: Items
    extra: Extra


def all_to_all(sizes: Sizes, load: Load) -> Program:
    """Every rank sends items to every rank, divided among blocks."""
    program = ProgramWriter(sizes.num_ranks)
    tracks = _blocks(program, sizes, 0)
    for track in tracks.values():
        track.work("prepare")
    _exchange(tracks, sizes, load, "send")
    _receive(tracks, sizes, load, "wait", "copy")
    for (rank, block), track in tracks.items():
        _more(track, load, rank, block, "copy")
        track.work("finish")
    return program.program()


def staged(sizes: Sizes, load: Load) -> Program:
    """An all-to-all in three kernels: send and receive, work, return and reduce."""
    program = ProgramWriter(sizes.num_ranks, num_stages=3)
    tracks = _blocks(program, sizes, 0)
    for track in tracks.values():
        track.work("prepare")
    _exchange(tracks, sizes, load, "send")
    _receive(tracks, sizes, load, "wait", "copy")
    for (rank, block), track in _blocks(program, sizes, 1).items():
        for _ in range(sizes.items + load.extra(rank, block)):
            track.work("work")
    tracks = _blocks(program, sizes, 2)
    _exchange(tracks, sizes, load, "return")
    _receive(tracks, sizes, load, "wait-return", "reduce")
    return program.program()


def ring(sizes: Sizes, load: Load) -> Program:
    """Every block has its own ring: send to the next rank, wait for the one before, add."""
    program = ProgramWriter(sizes.num_ranks)
    steps = min(sizes.num_ranks - 1, 2 * sizes.items)
    for (rank, block), track in _blocks(program, sizes, 0).items():
        track.work("prepare")
        for step in range(max(1, steps)):
            slot = block + step * sizes.num_blocks
            track.send((rank + 1) % sizes.num_ranks, slot)
            track.wait((rank - 1) % sizes.num_ranks, slot)
            track.work("reduce")
        _more(track, load, rank, block, "reduce")
        track.work("finish")
    return program.program()


def tree(sizes: Sizes, load: Load) -> Program:
    """A sum up a binary tree of ranks, and the result down again. Every block has its own tree."""
    program = ProgramWriter(sizes.num_ranks)
    for (rank, block), track in _blocks(program, sizes, 0).items():
        children = [c for c in (2 * rank + 1, 2 * rank + 2) if c < sizes.num_ranks]
        for part in range(max(1, sizes.items // 2)):
            slot = block + part * sizes.num_blocks
            track.work("prepare")
            for child in children:
                track.wait(child, slot)
                track.work("reduce")
            if rank:
                track.send((rank - 1) // 2, slot)
                track.wait((rank - 1) // 2, slot, "wait-return")
            for child in children:
                track.send(child, slot, "return")
            track.work("copy")
        _more(track, load, rank, block, "copy")
    return program.program()


def pipeline(sizes: Sizes, load: Load) -> Program:
    """Items go from rank to rank, each works on them."""
    program = ProgramWriter(sizes.num_ranks)
    for (rank, block), track in _blocks(program, sizes, 0).items():
        for item in range(2 * sizes.items):
            slot = block + item * sizes.num_blocks
            if rank:
                track.wait(rank - 1, slot)
            track.work("work")
            if rank + 1 < sizes.num_ranks:
                track.send(rank + 1, slot)
        _more(track, load, rank, block, "work")
    return program.program()


def halo(sizes: Sizes, load: Load) -> Program:
    """Steps of a simulation on a ring of ranks: exchange edges with both neighbours, then work."""
    program = ProgramWriter(sizes.num_ranks)
    for (rank, block), track in _blocks(program, sizes, 0).items():
        left, right = (rank - 1) % sizes.num_ranks, (rank + 1) % sizes.num_ranks
        for step in range(sizes.items):
            base = 2 * (block + step * sizes.num_blocks)
            track.work("prepare")
            track.send(left, base)
            track.send(right, base + 1)
            track.wait(left, base + 1)
            track.wait(right, base)
            track.work("work")
        _more(track, load, rank, block, "work")
    return program.program()


def warps(sizes: Sizes, load: Load) -> Program:
    """A warp loads, two warps of the block work, with room for two items each. Then ranks exchange results."""
    program = ProgramWriter(sizes.num_ranks)
    for rank in range(sizes.num_ranks):
        for block in range(sizes.num_blocks):
            num_items = 2 * (sizes.items + load.extra(rank, block))
            producer = program.track(rank, block, 0)
            consumers = [program.track(rank, block, 1 + i) for i in range(2)]
            for item in range(num_items):
                slot = block << 12 | item
                if item >= 4:
                    producer.wait(rank, slot - 4, "wait-room")
                producer.work("load")
                producer.send(rank, slot, "put")
                consumer = consumers[item % 2]
                consumer.wait(rank, slot, "take")
                consumer.work("work", 1500)
                if item + 4 < num_items:
                    consumer.send(rank, slot, "free")
            for i, consumer in enumerate(consumers):
                slot = 2 * block + i
                consumer.send((rank + 1) % sizes.num_ranks, slot)
                consumer.wait((rank - 1) % sizes.num_ranks, slot)
                consumer.work("finish")
    return program.program()


def barriers(sizes: Sizes, load: Load) -> Program:
    """Rounds of work, with a barrier of all blocks of all ranks after each."""
    program = ProgramWriter(sizes.num_ranks)
    for (rank, block), track in _blocks(program, sizes, 0).items():
        for item in range(sizes.items):
            track.work("work")
            track.barrier(item)
        _more(track, load, rank, block, "finish")
        track.work("finish")
    return program.program()


def locks(sizes: Sizes, load: Load) -> Program:
    """Blocks work, and add to the sum of their rank one at a time; then ranks exchange sums."""
    program = ProgramWriter(sizes.num_ranks)
    for (rank, block), track in _blocks(program, sizes, 0).items():
        for _ in range(sizes.items + load.extra(rank, block)):
            track.work("work")
        track.locked(rank, "add")
        track.barrier(("rank", rank))
        if sizes.num_ranks > 1:
            track.send((rank + 1) % sizes.num_ranks, block)
            track.wait((rank - 1) % sizes.num_ranks, block)
        track.work("finish")
    return program.program()


def butterfly(sizes: Sizes, load: Load) -> Program:
    """Recursive doubling: in step k, exchange with the rank whose k-th bit differs, where there is one."""
    program = ProgramWriter(sizes.num_ranks)
    for (rank, block), track in _blocks(program, sizes, 0).items():
        track.work("prepare")
        distance = 1
        while distance < sizes.num_ranks:
            partner = rank ^ distance
            if partner < sizes.num_ranks:
                slot = block + distance * sizes.num_blocks
                track.send(partner, slot)
                track.wait(partner, slot)
                track.work("reduce")
            distance *= 2
        _more(track, load, rank, block, "reduce")
        for _ in range(sizes.items):
            track.work("finish")
    return program.program()


def server(sizes: Sizes, load: Load) -> Program:
    """Ranks work and send to rank 0, which adds and sends back."""
    program = ProgramWriter(sizes.num_ranks)
    for (rank, block), track in _blocks(program, sizes, 0).items():
        for item in range(max(1, sizes.items // 2)):
            slot = block + item * sizes.num_blocks
            track.work("work")
            if rank:
                track.send(0, slot)
                track.wait(0, slot, "wait-return")
                track.work("copy")
            else:
                for other in range(1, sizes.num_ranks):
                    track.wait(other, slot)
                    track.work("reduce", 200)
                for other in range(1, sizes.num_ranks):
                    track.send(other, slot, "return")
        _more(track, load, rank, block, "copy")
        track.work("finish")
    return program.program()


def torus(sizes: Sizes, load: Load) -> Program:
    """Ranks in two dimensions: exchange along rows, work, exchange along columns, work."""
    program = ProgramWriter(sizes.num_ranks)
    width = max(w for w in range(1, int(sizes.num_ranks**0.5) + 1) if sizes.num_ranks % w == 0)
    for (rank, block), track in _blocks(program, sizes, 0).items():
        row, column = divmod(rank, width)
        height = sizes.num_ranks // width
        along = (row * width + (column + 1) % width, row * width + (column - 1) % width)
        down = ((row + 1) % height * width + column, (row - 1) % height * width + column)
        for step in range(sizes.items):
            for way, (ahead, behind) in enumerate((along, down)):
                slot = 2 * (block + step * sizes.num_blocks) + way
                if ahead != rank:
                    track.send(ahead, slot)
                    track.wait(behind, slot)
                track.work("work")
        _more(track, load, rank, block, "work")
    return program.program()


TOPOLOGIES: Final[dict[str, Callable[[Sizes, Load], Program]]] = {
    function.__name__: function
    for function in (all_to_all, staged, ring, tree, pipeline, halo, warps, barriers, locks)
}
# Not looked at while the analyses were written.
HELD_BACK: Final[dict[str, Callable[[Sizes, Load], Program]]] = {
    function.__name__: function for function in (butterfly, server, torus)
}


def _blocks(program: ProgramWriter, sizes: Sizes, stage: int) -> dict[tuple[int, int], TrackWriter]:
    return {
        (rank, block): program.track(rank, block, stage=stage)
        for rank in range(sizes.num_ranks)
        for block in range(sizes.num_blocks)
    }


def _exchange(
    tracks: dict[tuple[int, int], TrackWriter], sizes: Sizes, load: Load, region: str
) -> None:
    """Items are dealt out over the blocks. A rank begins with its neighbour, else all would hit rank 0 first."""
    for src in range(sizes.num_ranks):
        peers = [(src + shift) % sizes.num_ranks for shift in range(sizes.num_ranks)]
        most = max(load.items(src, dst) for dst in peers)
        items = [(dst, i) for i in range(most) for dst in peers if i < load.items(src, dst)]
        for position, (dst, i) in enumerate(items):
            tracks[src, position % sizes.num_blocks].send(dst, i, region)


def _receive(
    tracks: dict[tuple[int, int], TrackWriter], sizes: Sizes, load: Load, region: str, work: str
) -> None:
    for rank in range(sizes.num_ranks):
        position = 0
        for i in range(max(load.items(src, rank) for src in range(sizes.num_ranks))):
            for src in range(sizes.num_ranks):
                if i < load.items(src, rank):
                    track = tracks[rank, position % sizes.num_blocks]
                    track.wait(src, i, region)
                    track.work(work)
                    position += 1


def _more(track: TrackWriter, load: Load, rank: int, block: int, region: str) -> None:
    for _ in range(load.extra(rank, block)):
        track.work(region)
