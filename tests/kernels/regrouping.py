"""Started under torchrun by test_all_to_all_calls.py: the same processes join several groups and
call in each.

Group 0 closes its plans; groups 1 and 2 are destroyed without, and their plans must not be taken
for those of a later group.
"""

from __future__ import annotations

import os
import sys

import torch.distributed as dist

from instrumented_kernels.all_to_all import Problem, all_to_all, calls, close_plans
from instrumented_kernels.all_to_all.routing import count_wrong, make_inputs, reference

PROBLEM = Problem(num_experts=8, top_k=3, hidden=40, max_tokens=256)
NUM_GROUPS = 4


def call_in_new_group(number: int) -> int:
    rank = int(os.environ["RANK"])
    # A store of its own: in the launcher's, a group would find the addresses of the one before.
    store = dist.FileStore(f"{sys.argv[1]}/{number}", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    wrong = 0
    for variant in ("torch", "pipelined", "balanced"):
        for call in range(3):
            inputs = make_inputs(PROBLEM, 5 - rank, 100 * number + 10 * call + rank)
            out = all_to_all(
                inputs.x, inputs.indices, inputs.weights, num_experts=8, variant=variant
            )
            wrong += count_wrong(out, reference(PROBLEM, inputs, 2))
    if number in (0, NUM_GROUPS - 1):
        close_plans()
    dist.barrier()
    dist.destroy_process_group()
    return wrong


def main() -> None:
    wrong = sum(call_in_new_group(number) for number in range(NUM_GROUPS))
    print(
        f"{wrong} wrong values in {NUM_GROUPS} groups, {len(calls._plans)} plans of dead groups "
        "left"
    )


if __name__ == "__main__":
    main()
