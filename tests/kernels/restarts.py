"""A plain harness, as anybody might write one: no call of ours but all_to_all and all_reduce.

It spawns ranks. In the same processes it starts one process group after the other on the same port,
calls with another shape in each, and destroys it.

    python tests/kernels/restarts.py cpu 2
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from instrumented_kernels.all_reduce import all_reduce
from instrumented_kernels.all_to_all import Problem, all_to_all, calls
from instrumented_kernels.all_to_all.routing import count_wrong, make_inputs, reference

NUM_ROUNDS = 10


def calls_of_a_round(number: int, rank: int, world_size: int, device: str) -> int:
    """Wrong values in calls whose shape is that of this round only."""
    problem = Problem(4 * world_size, 1 + number % 3, 8 * (number + 1), 4 + number)
    inputs = make_inputs(problem, problem.max_tokens - rank, 10 * number + rank)
    there = inputs.to(device)
    out = all_to_all(
        there.x,
        there.indices,
        there.weights,
        num_experts=problem.num_experts,
        max_tokens=problem.max_tokens,
    )
    wrong = count_wrong(out.cpu(), reference(problem, inputs, world_size))
    total = all_reduce(torch.full((100 + number,), float(rank + 1), device=device)).cpu()
    return wrong + int((total != world_size * (world_size + 1) / 2).sum())


def run_rank(rank: int, world_size: int, port: int, target: str, go: Any) -> None:
    device = "cpu" if target == "cpu" else f"cuda:{rank}"
    if target != "cpu":
        torch.cuda.set_device(rank)
    wrong = 0
    for number in range(NUM_ROUNDS):
        # The next group must not find the store of the one before.
        go.wait()
        dist.init_process_group(
            "gloo" if target == "cpu" else "nccl",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=rank,
            world_size=world_size,
        )
        wrong += calls_of_a_round(number, rank, world_size, device)
        dist.destroy_process_group()
    left = f"{len(calls._plans)} plans of dead groups left"
    print(f"rank {rank}: {wrong} wrong values in {NUM_ROUNDS} groups, {left}", flush=True)
    if wrong:
        raise SystemExit(1)


def main() -> None:
    target, world_size = sys.argv[1], int(sys.argv[2])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    go = mp.get_context("spawn").Barrier(world_size)
    mp.spawn(run_rank, (world_size, port, target, go), nprocs=world_size)


if __name__ == "__main__":
    main()
