"""Ranks on GPUs that do not make the same calls, devices that are not current, streams that change.

Started under torchrun by test_collectives_gpu.py; every case asserts on its own rank.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from instrumented_kernels import all_reduce as reduction
from instrumented_kernels import all_to_all as exchange
from instrumented_kernels.all_to_all.routing import count_wrong, make_inputs, reference
from instrumented_kernels.call_ledger import DifferentCallsError, PeerTimeoutError
from instrumented_kernels.workload import choose_device, joined_group
from kprof.devices.groups import Group

TIMEOUT_S = 1.0


def tell_at_the_next_call(group: Group, device: str, variant: str) -> None:
    plan = reduction.Plan(group, device=device, timeout_s=TIMEOUT_S)
    tensor = torch.ones(1000, device=device)
    if group.rank == 0:
        plan(tensor, variant=variant)
        torch.cuda.synchronize()
        with pytest.raises(PeerTimeoutError, match="has not made call 1, all_reduce of 1000"):
            plan(tensor, variant=variant)
    group.barrier()
    plan.close()


def tell_of_an_async_exchange(group: Group, device: str, variant: str) -> None:
    problem = exchange.Problem(4 * group.world_size, 3, 512, 16)
    plan = exchange.Plan(group, problem, variant=variant, device=device, timeout_s=TIMEOUT_S)
    if group.rank == 0:
        inputs = make_inputs(problem, 16, 1).to(device)
        plan(inputs.x, inputs.indices, inputs.weights, is_async=True)
        torch.cuda.synchronize()
        with pytest.raises(PeerTimeoutError, match="has not made call 1, all_to_all of"):
            plan(inputs.x, inputs.indices, inputs.weights, is_async=True)
    group.barrier()
    plan.close()


def tell_of_a_replay(group: Group, device: str, variant: str) -> None:
    """Everybody captures a call and replays it; then rank 0 replays it alone."""
    plan = reduction.Plan(group, device=device, timeout_s=TIMEOUT_S)
    tensor, out = torch.ones(1000, device=device), torch.zeros(1000, device=device)
    plan(tensor, out=out, variant=variant)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(tensor, out=out, variant=variant)
    group.barrier()
    graph.replay()
    plan.wait()
    assert bool((out == group.world_size).all())
    group.barrier()
    if group.rank == 0:
        graph.replay()
        torch.cuda.synchronize()
        tell: Callable[[], object] = plan.wait
        if variant == "twoshot":
            tell = lambda: plan(tensor, variant=variant)  # noqa: E731
        with pytest.raises(PeerTimeoutError, match=r"rank 0 waited 1\.\d s for rank"):
            tell()
    group.barrier()
    plan.close()


def name_different_lengths(group: Group, device: str, variant: str) -> None:
    plan = reduction.Plan(group, device=device, timeout_s=TIMEOUT_S)
    if group.rank == 0:
        plan(torch.ones(8192, device=device), variant=variant)
    group.barrier()
    if group.rank != 0:
        with pytest.raises(DifferentCallsError, match="rank 0 calls all_reduce of 8192"):
            plan(torch.ones(4096, device=device), variant=variant)
    group.barrier()
    if group.rank == 0:
        with pytest.raises(PeerTimeoutError, match=r"instead of making all_reduce of 4096"):
            plan.wait()
    group.barrier()
    plan.close()


def run_on_a_device_that_is_not_current(group: Group, device: str) -> None:
    number = torch.device(device).index
    other = (number + 1) % torch.cuda.device_count()
    torch.cuda.set_device(other)
    problem = exchange.Problem(4 * group.world_size, 3, 512, 256)
    inputs = make_inputs(problem, 100, group.rank)
    there = inputs.to(device)
    plan = reduction.Plan(group, device=device)
    for _ in range(3):
        total = reduction.all_reduce(torch.ones(5000, device=device))
        again = plan(torch.ones(5000, device=device))
        out = exchange.all_to_all(
            there.x, there.indices, there.weights, num_experts=problem.num_experts
        )
        assert bool((total == group.world_size).all())
        assert bool((again == group.world_size).all())
        assert count_wrong(out.cpu(), reference(problem, inputs, group.world_size)) == 0
        assert torch.cuda.current_device() == other
    with pytest.raises(ValueError, match=f"tensor is on cuda:{other}, the plan runs on {device}"):
        plan(torch.ones(10, device=f"cuda:{other}"))
    plan.close()
    torch.cuda.set_device(number)


def refuse_bad_indices(group: Group, device: str, variant: str) -> None:
    problem = exchange.Problem(4 * group.world_size, 3, 512, 16)
    plan = exchange.Plan(group, problem, variant=variant, device=device)
    for call, expert in enumerate([0, problem.num_experts, -1, None, 0]):
        inputs = make_inputs(problem, 16, 10 * call + group.rank)
        expected = reference(problem, inputs, group.world_size)
        is_bad = group.rank == 0 and 1 <= call <= 3
        if is_bad:
            inputs.indices[2, 1] = inputs.indices[2, 0] if expert is None else expert
        there = inputs.to(device)
        out = torch.full_like(there.x, float("nan"))
        if is_bad:
            with pytest.raises(ValueError, match="token 2 names"):
                plan(there.x, there.indices, there.weights, out=out)
            out[2], expected[2] = 0, 0
        else:
            plan(there.x, there.indices, there.weights, out=out)
        assert count_wrong(out.cpu(), expected) == 0
    plan.close()


def replay_an_exchange(group: Group, device: str, variant: str) -> None:
    """One captured call, replayed with new values, and calls outside of the graph between its replays."""
    problem = exchange.Problem(4 * group.world_size, 3, 512, 16)
    plan = exchange.Plan(group, problem, variant=variant, device=device)
    kept = make_inputs(problem, 16, group.rank).to(device)
    out = torch.full_like(kept.x, float("nan"))
    plan(kept.x, kept.indices, kept.weights, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match="pass is_async=True"):
            plan(kept.x, kept.indices, kept.weights, out=out)
        plan(kept.x, kept.indices, kept.weights, out=out, is_async=True)
    for number in range(20):
        inputs = make_inputs(problem, 16, 100 * number + group.rank)
        there = inputs.to(device)
        for name in ("x", "indices", "weights"):
            getattr(kept, name).copy_(getattr(there, name))
        expected = reference(problem, inputs, group.world_size)
        graph.replay()
        plan.wait()
        assert count_wrong(out.cpu(), expected) == 0
        if number % 3 == 0:
            again = plan(there.x, there.indices, there.weights)
            assert count_wrong(again.cpu(), expected) == 0
    plan.close()


def change_streams(group: Group, device: str, variant: str) -> None:
    plan = reduction.Plan(group, device=device)
    streams = [torch.cuda.Stream(device) for _ in range(2)]
    tensor = torch.ones(100_000, device=device)
    outs = [torch.zeros_like(tensor) for _ in range(200)]
    torch.cuda.synchronize()
    for number, out in enumerate(outs):
        with torch.cuda.stream(streams[number % 2]):
            plan(tensor, out=out, variant=variant)
    plan.wait()
    assert all(bool((out == group.world_size).all()) for out in outs)
    plan.close()


def main() -> None:
    device = choose_device("auto")
    assert device != "cpu", "this test is about GPUs"
    with joined_group() as group:
        for variant in ("oneshot", "twoshot_packets", "twoshot", "oneshot_lock"):
            tell_at_the_next_call(group, device, variant)
            tell_of_a_replay(group, device, variant)
            name_different_lengths(group, device, variant)
            change_streams(group, device, variant)
        for variant in ("rank_flags", "token_flags", "fused", "balanced", "pipelined"):
            tell_of_an_async_exchange(group, device, variant)
            refuse_bad_indices(group, device, variant)
            replay_an_exchange(group, device, variant)
        run_on_a_device_that_is_not_current(group, device)
        group.barrier()
        print(f"rank {group.rank}: all cases of peers are right", flush=True)


if __name__ == "__main__":
    main()
