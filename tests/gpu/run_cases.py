"""Runs the must-work cases of the all-to-all on this rank's GPU.

Started under torchrun by test_collectives_gpu.py.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import torch

from delivery import dispatched
from instrumented_kernels.all_to_all import Plan, Problem, make_plan
from instrumented_kernels.all_to_all.calls import AnyPlan
from instrumented_kernels.all_to_all.routing import (
    ATOL,
    RTOL,
    Inputs,
    count_wrong,
    make_inputs,
    reference,
)
from instrumented_kernels.workload import choose_device, joined_group
from kprof.devices.groups import Group

SHAPES = [
    (8, 2, 6144, 16),
    (64, 6, 2048, 32),
    (128, 4, 2880, 128),
    (128, 8, 4096, 256),
    (256, 8, 7168, 256),
]
ODD_SHAPES = [(8, 1, 40, 6), (8, 3, 37, 5), (8, 8, 1, 3)]
NUM_FREE_CALLS = 1000


VARIANTS = ("torch", "rank_flags", "token_flags", "fused", "balanced", "pipelined")
FREE_VARIANTS = ("rank_flags", "token_flags", "balanced", "pipelined")


@dataclass(frozen=True)
class Case:
    """Inputs of one call and what must come out."""

    inputs: Inputs
    expected: torch.Tensor


def make_case(group: Group, problem: Problem, inputs: Inputs) -> Case:
    return Case(inputs, reference(problem, inputs, group.world_size))


def count_wrong_of(group: Group, plan: AnyPlan, cases: list[Case]) -> int:
    """Wrong values over all cases, outputs poisoned before each; then the plan is closed."""
    wrong = 0
    for case in cases:
        inputs = case.inputs.to(plan.device)
        out = torch.full_like(inputs.x, float("nan"))
        plan(inputs.x, inputs.indices, inputs.weights, out=out)
        wrong += count_wrong(out.cpu(), case.expected)
    plan.close()
    return wrong


def run_shape(group: Group, device: str, shape: tuple[int, ...]) -> dict[str, int]:
    """Every variant on full, half, few, no and again full tokens."""
    problem = Problem(*shape)
    counts = [problem.max_tokens, problem.max_tokens // 2, group.rank, 0, problem.max_tokens]
    cases = [
        make_case(
            group,
            problem,
            make_inputs(problem, min(count, problem.max_tokens), 97 * call + group.rank),
        )
        for call, count in enumerate(counts)
    ]
    return {
        f"{variant} {shape}": count_wrong_of(
            group, make_plan(group, problem, variant=variant, device=device), cases
        )
        for variant in VARIANTS
    }


def run_one_sided(group: Group, device: str) -> dict[str, int]:
    """Every token to the experts of the last rank."""
    problem = Problem(8 * group.world_size, 4, 512, 32)
    inputs = make_inputs(problem, 32, group.rank)
    last = torch.arange(8 * group.world_size - 4, 8 * group.world_size, dtype=torch.int32)
    inputs = Inputs(inputs.x, last.repeat(32, 1).contiguous(), inputs.weights)
    case = make_case(group, problem, inputs)
    return {
        f"{variant}, one-sided": count_wrong_of(
            group, make_plan(group, problem, variant=variant, device=device), [case]
        )
        for variant in VARIANTS
    }


def run_free(group: Group, device: str, variant: str) -> int:
    """A thousand calls back to back with no barrier, one rank slow. Every result is looked at, on the device."""
    problem = Problem(8 * group.world_size, 3, 256, 8)
    plan = Plan(group, problem, variant=variant, device=device)
    cases = [
        make_case(group, problem, make_inputs(problem, 8 - i, 7 * i + group.rank)) for i in range(4)
    ]
    ready = [(case.inputs.to(device), case.expected.to(device)) for case in cases]
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for call in range(NUM_FREE_CALLS):
        one, expected = ready[call % 4]
        out = torch.full_like(one.x, float("nan"))
        plan(one.x, one.indices, one.weights, out=out, is_async=True)
        wrong += (~((out.double() - expected).abs() <= ATOL + RTOL * expected.abs())).sum()
        if group.rank == 1 and call % 50 == 0:
            time.sleep(0.002)
    plan.wait()
    plan.close()
    return int(wrong)


def run_delivery(group: Group, device: str, variant: str) -> int:
    """Rows that dispatch delivered wrongly: to the wrong expert, changed, twice or not at all."""
    problem = Problem(8 * group.world_size, 3, 264, 8)
    plan = Plan(group, problem, variant=variant, device=device)
    everyone = [make_inputs(problem, 8, rank) for rank in range(group.world_size)]
    own = everyone[group.rank].to(device)
    for _ in range(2):
        plan(own.x, own.indices, own.weights)
    got = dispatched(plan)
    plan.close()
    factor = 1 + group.rank if variant in ("rank_flags", "token_flags") else 1
    wrong = 0
    for local, (rows, origins) in enumerate(zip(got.rows, got.origins, strict=True)):
        expert = 8 * group.rank + local
        wanted = {
            (flat, source): inputs.x[flat // 3]
            for source, inputs in enumerate(everyone)
            for flat in (inputs.indices.flatten() == expert).nonzero().flatten().tolist()
        }
        for row, (flat, source) in zip(rows, origins, strict=True):
            sent = wanted.pop((int(flat), int(source)), None)
            expected = None if sent is None else (sent.float() * factor).half()
            wrong += expected is None or not torch.equal(torch.from_numpy(row), expected)
        wrong += len(wanted)
    return wrong


def main() -> None:
    device = choose_device("auto")
    assert device != "cpu", "this test is about GPUs"
    with joined_group() as group:
        results = run_one_sided(group, device)
        for variant in FREE_VARIANTS:
            results[f"{variant}, free"] = run_free(group, device, variant)
            results[f"{variant}, delivery"] = run_delivery(group, device, variant)
        for shape in SHAPES + [odd for odd in ODD_SHAPES if odd[0] % group.world_size == 0]:
            results |= run_shape(group, device, shape)
        everyone = group.all_gather(results)
        if group.rank == 0:
            failed = [{name: n for name, n in one.items() if n} for one in everyone]
            print(f"wrong values by rank, of {len(results)} cases:", failed, flush=True)
    sys.exit(any(results.values()))


if __name__ == "__main__":
    main()
