"""A Triton kernel whose ranks add up items and then meet, with a cause planted by its arguments.

TRITON_INTERPRET=1 kprof record --nproc 2 -o run.kprof -- python -m benchmarks.planted_triton --slow program
"""

from __future__ import annotations

import argparse
import time

import torch
import triton
import triton.language as tl

import kprof
import kprof.triton as kp
from instrumented_kernels.triton_collectives.kernels import EACH_CALL, SIGNAL, WAIT, meet, regions
from instrumented_kernels.workload import choose_device, joined_group

ADD = regions.define("triton/add", category="compute", item=32)
PROGRAMS, ITEMS, SIZE = 4, 4, 1024
# The rank, program and call that are slow.
RANK, PROGRAM, CALL = 1, 2, 5
FACTOR = 8
CAUSES = ("nothing", "rank", "program", "call", "items", "late")


@triton.jit(do_not_specialize=EACH_CALL)
def add_and_meet(
    x, out, num_items, num_repeats, bases, rank, epoch, prof, WORLD: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """Every program adds up its items, each so many times, and meets those of the other ranks."""
    track = kp.open_track(prof)
    program = tl.program_id(0)
    total = tl.zeros((SIZE,), dtype=tl.float32)
    for item in range(tl.load(num_items + program)):
        begin = kp.start(track)
        for _ in range(tl.load(num_repeats + program)):
            total += tl.load(x + tl.arange(0, SIZE))
        track = kp.stop(track, begin, ADD, item)
    tl.store(out + program * SIZE + tl.arange(0, SIZE), total)
    meet(track, bases, 0, rank, epoch, SIGNAL, WAIT, WORLD)


def work_of(cause: str, rank: int, call: int) -> tuple[list[int], list[int]]:
    """How many items each program has, and how many times each is added."""
    items, repeats = [ITEMS] * PROGRAMS, [1] * PROGRAMS
    if rank == RANK and (cause == "rank" or (cause == "call" and call == CALL)):
        repeats = [FACTOR] * PROGRAMS
    elif rank == RANK and cause == "program":
        repeats[PROGRAM] *= FACTOR
    elif rank == RANK and cause == "items":
        items = [ITEMS * FACTOR] * PROGRAMS
    return items, repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slow", choices=CAUSES, default="nothing")
    parser.add_argument("--repeats", type=int, default=8)
    options = parser.parse_args()
    device = choose_device("auto")
    with joined_group() as group:
        rank, world = group.rank, group.world_size
        heap = kprof.SymmetricHeap(group, 4 * world * PROGRAMS, device)
        recorder = kprof.recorder(device=device, rank=rank, world_size=world)
        bases = torch.tensor(heap.bases, dtype=torch.int64, device=device)
        x = torch.ones(SIZE, device=device)
        recorder.align(group)
        for call in range(options.repeats):
            items, repeats = work_of(options.slow, rank, call)
            out = torch.zeros(PROGRAMS, SIZE, device=device)
            counts = [torch.tensor(n, dtype=torch.int32, device=device) for n in (items, repeats)]
            group.barrier()
            time.sleep(0.1 if options.slow == "late" and rank == RANK else 0)
            prof = kp.buffer("add_and_meet", (PROGRAMS,), regions, recorder=recorder)
            add_and_meet[(PROGRAMS,)](
                x, out, *counts, bases, rank, call + 1, prof, WORLD=world, SIZE=SIZE
            )
            expected = (counts[0] * counts[1]).float()
            assert torch.equal(out, expected[:, None].expand_as(out)), out
        group.barrier()
        recorder.align(group)
        heap.close()


if __name__ == "__main__":
    main()
