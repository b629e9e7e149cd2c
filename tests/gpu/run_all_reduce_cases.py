"""Runs the must-work cases of the all-reduce on this rank's GPU.

Started under torchrun by test_collectives_gpu.py.
"""

from __future__ import annotations

import sys
import time

import torch

from instrumented_kernels.all_reduce import Plan
from instrumented_kernels.all_reduce.values import expected_sum
from instrumented_kernels.workload import choose_device, joined_group
from kprof.devices.groups import Group

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
LENGTHS = [1, 2, 3, 7, 4096, 4098, 12345, 53472, 234496, 1341992]
NUM_FREE_CALLS = 10_000
GUARD = 9


def made_up(
    rank: int, num_elements: int, dtype: torch.dtype, device: str, seed: int
) -> torch.Tensor:
    """What `rank` contributes; every rank can make it."""
    generator = torch.Generator(device).manual_seed(1000 * seed + rank)
    return torch.randn(num_elements, generator=generator, device=device).to(dtype)


def check(
    group: Group, plan: Plan, variant: str, length: int, dtype: torch.dtype, offset: int
) -> int:
    """One call out of place and one in place, both between guards; the number of wrong elements."""
    device = plan.device
    everyone = [made_up(r, length, dtype, device, length) for r in range(group.world_size)]
    expected = expected_sum(everyone)
    source = torch.full((length + 2 * GUARD,), 3.0, dtype=dtype, device=device)
    target = torch.full_like(source, float("nan"))
    source[offset : offset + length] = everyone[group.rank]
    part = slice(offset, offset + length)
    plan(source[part], out=target[part], variant=variant)
    plan(source[part], out=source[part], variant=variant)
    plan.wait()
    wrong = int((target[part] != expected).sum()) + int((source[part] != expected).sum())
    wrong += int((source[:offset] != 3).sum()) + int((source[offset + length :] != 3).sum())
    wrong += int((~target[:offset].isnan()).sum()) + int((~target[offset + length :].isnan()).sum())
    return wrong


def run_integers(group: Group, plan: Plan, variant: str) -> int:
    tensors = [
        torch.randint(1, 16, (8196,), generator=torch.Generator().manual_seed(r)).half()
        for r in range(group.world_size)
    ]
    result = plan(tensors[group.rank].to(plan.device), variant=variant)
    plan.wait()
    return int((result.cpu() != sum(each.double() for each in tensors)).sum())


def run_graph(group: Group, plan: Plan, variant: str) -> int:
    """Three calls of different sizes in one graph, replayed with new values."""
    lengths = [70, 8192, 300_000]
    tensors = [torch.zeros(n, dtype=torch.bfloat16, device=plan.device) for n in lengths]
    outs = [torch.zeros_like(each) for each in tensors]
    for tensor, out in zip(tensors, outs, strict=True):
        plan(tensor, out=out, variant=variant)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for tensor, out in zip(tensors, outs, strict=True):
            plan(tensor, out=out, variant=variant)
    wrong = 0
    for replay in range(20):
        for tensor in tensors:
            tensor.copy_(made_up(group.rank, len(tensor), tensor.dtype, plan.device, replay))
        graph.replay()
        plan(tensors[0], out=outs[0], variant=variant)  # a call between replays takes its turn
        for tensor, out in zip(tensors, outs, strict=True):
            everyone = [
                made_up(r, len(tensor), tensor.dtype, plan.device, replay)
                for r in range(group.world_size)
            ]
            wrong += int((out != expected_sum(everyone)).sum())
    plan.wait()
    return wrong


def run_free(group: Group, plan: Plan) -> int:
    """Ten thousand calls back to back with no barrier, sizes and variants changing, one rank slow on the host and
    one on the device; every result is looked at, on the device."""
    lengths = [1, 500, 2049, 8192, 33_333, 65_536, 4, 150_001]
    variants = [v for v in plan.variants if v != "oneshot_serial"] + ["auto"]
    everyone = [
        [made_up(r, n, torch.bfloat16, plan.device, n) for r in range(group.world_size)]
        for n in lengths
    ]
    expected = [expected_sum(each) for each in everyone]
    wrong = torch.zeros((), dtype=torch.int64, device=plan.device)
    for call in range(NUM_FREE_CALLS):
        i = (call * 5 + call // 8) % len(lengths)
        out = torch.full_like(expected[i], float("nan"))
        plan(everyone[i][group.rank], out=out, variant=variants[call % len(variants)])
        wrong += (out != expected[i]).sum()
        if group.rank == 1 and call % 500 == 0:
            time.sleep(0.002)
        if group.rank == group.world_size - 1 and call % 50 == 0:
            torch.cuda._sleep(100_000)
    plan.wait()
    return int(wrong)


def main() -> None:
    device = choose_device("auto")
    assert device != "cpu", "this test is about GPUs"
    with joined_group() as group:
        plan = Plan(group, device=device)
        results: dict[str, int] = {}
        for variant in (*plan.variants, "auto"):
            for dtype in DTYPES:
                results[f"{variant} {dtype}"] = sum(
                    check(group, plan, variant, length, dtype, offset)
                    for length in LENGTHS
                    for offset in (0, 1, 8)
                )
            results[f"{variant} integers"] = run_integers(group, plan, variant)
            results[f"{variant} graph"] = run_graph(group, plan, variant)
        results["64 MiB"] = check(group, plan, "auto", 32 << 20, torch.bfloat16, 0)
        results["free"] = run_free(group, plan)
        plan.close()
        everyone = group.all_gather(results)
        if group.rank == 0:
            print("wrong values by rank and case:", everyone, flush=True)
    sys.exit(any(results.values()))


if __name__ == "__main__":
    main()
