"""Runs the must-work cases of the all-to-all on this rank's GPU; started under torchrun by test_all_to_all_gpu.py."""

from __future__ import annotations

import sys
import time

import torch

from instrumented_kernels.all_to_all import Plan, Problem
from instrumented_kernels.all_to_all.routing import Inputs, count_wrong, make_inputs, reference
from instrumented_kernels.workload import choose_device, joined_group
from kprof.groups import Group

SHAPES = [
    (8, 2, 6144, 16),
    (64, 6, 2048, 32),
    (128, 4, 2880, 128),
    (128, 8, 4096, 256),
    (256, 8, 7168, 256),
]
ODD_SHAPES = [(8, 1, 40, 6), (8, 3, 37, 5), (8, 8, 1, 3)]
NUM_FREE_CALLS = 1000


def check(group: Group, plan: Plan, inputs: Inputs) -> int:
    on_device = inputs.to(plan.device)
    out = torch.full_like(on_device.x, float("nan"))
    plan(on_device.x, on_device.indices, on_device.weights, out=out)
    return count_wrong(out.cpu(), reference(plan.problem, inputs, group.world_size))


def run_shape(
    group: Group, device: str, shape: tuple[int, ...], variant: str = "token_flags"
) -> int:
    problem = Problem(*shape)
    plan = Plan(group, problem, variant=variant, device=device)
    wrong = 0
    for call, num_tokens in enumerate(
        [problem.max_tokens, problem.max_tokens // 2, group.rank, 0, problem.max_tokens]
    ):
        wrong += check(
            group,
            plan,
            make_inputs(problem, min(num_tokens, problem.max_tokens), 97 * call + group.rank),
        )
    plan.close()
    return wrong


def run_one_sided(group: Group, device: str) -> int:
    """Every token to the experts of the last rank."""
    problem = Problem(8 * group.world_size, 4, 512, 32)
    plan = Plan(group, problem, device=device)
    inputs = make_inputs(problem, 32, group.rank)
    last = torch.arange(8 * group.world_size - 4, 8 * group.world_size, dtype=torch.int32)
    wrong = check(group, plan, Inputs(inputs.x, last.repeat(32, 1).contiguous(), inputs.weights))
    plan.close()
    return wrong


def run_free(group: Group, device: str) -> int:
    """A thousand calls back to back with no barrier, one rank slow; every result is looked at, on the device."""
    problem = Problem(8 * group.world_size, 3, 256, 8)
    plan = Plan(group, problem, device=device)
    inputs = [make_inputs(problem, 8, 7 * i + group.rank) for i in range(4)]
    ready = [
        (one.to(device), reference(problem, one, group.world_size).to(device)) for one in inputs
    ]
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for call in range(NUM_FREE_CALLS):
        one, expected = ready[call % 4]
        out = torch.full_like(one.x, float("nan"))
        plan(one.x, one.indices, one.weights, out=out, is_async=True)
        wrong += (~((out.double() - expected).abs() <= 1.25e-3 + 2.5e-3 * expected.abs())).sum()
        if group.rank == 1 and call % 50 == 0:
            time.sleep(0.002)
    plan.wait()
    plan.close()
    return int(wrong)


def main() -> None:
    device = choose_device("auto")
    assert device != "cpu", "this test is about GPUs"
    with joined_group() as group:
        results = {"one-sided": run_one_sided(group, device), "free": run_free(group, device)}
        for variant in ("fused", "balanced"):
            results[variant] = run_shape(group, device, (64, 6, 2048, 32), variant)
        for shape in SHAPES + [odd for odd in ODD_SHAPES if odd[0] % group.world_size == 0]:
            results[str(shape)] = run_shape(group, device, shape)
        everyone = group.all_gather(results)
        if group.rank == 0:
            print("wrong values by rank and case:", everyone, flush=True)
    sys.exit(any(results.values()))


if __name__ == "__main__":
    main()
