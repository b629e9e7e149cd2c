"""Started under torchrun by test_all_to_all_calls.py: rank 1 changes the shape of its calls, rank 0 does not.

Rank 0 has its plan and rank 1 must make a new one, so that each of them waits for the other in
another place.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from instrumented_kernels.all_reduce import all_reduce
from instrumented_kernels.all_to_all import PeerError, all_to_all, calls
from instrumented_kernels.all_to_all.problem import Problem
from instrumented_kernels.all_to_all.routing import make_inputs


def call(hidden: int) -> None:
    inputs = make_inputs(Problem(8, 3, hidden, 256), 5, 1)
    all_to_all(inputs.x, inputs.indices, inputs.weights, num_experts=8)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    call(40)
    all_reduce(torch.ones(10))
    calls._plans._timeout_s = 10.0
    try:
        call(40 + 8 * rank)
    except PeerError as error:
        print(f"<rank {rank}: {error}>", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
