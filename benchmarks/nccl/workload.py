"""Ranks as processes of torchrun that share cuda:0. Rank 0 prints a line of JSON.

python -m benchmarks.nccl.workload right CALLS SECONDS
python -m benchmarks.nccl.workload late CALLS SECONDS [CALL:RANK:CAUSE:US ...]
python -m benchmarks.nccl.workload story STEPS
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

TENSOR_FLOATS = 16384
WARM_UPS, PROBES = 20, 20


def main() -> None:
    what, *arguments = sys.argv[1:]
    torch.cuda.set_device(0)
    if what == "build":
        build()
        return
    dist.init_process_group("cpu:gloo,cuda:nccl")
    said = story(int(arguments[0])) if what == "story" else calls(what, arguments)
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        print(json.dumps(said), flush=True)
    dist.destroy_process_group()


def calls(what: str, arguments: list[str]) -> dict[str, Any]:
    rank = dist.get_rank()
    on_host: Any = dist.new_group(backend="gloo")
    plants = [plant.split(":") for plant in arguments[2:]]
    late = {int(call): (cause, int(us)) for call, who, cause, us in plants if int(who) == rank}
    values = torch.ones(TENSOR_FLOATS, device="cuda")
    num_calls = _affordable(values, what, int(arguments[0]), float(arguments[1]))
    begun_s = time.perf_counter()
    num_pairs = int(what == "right")
    for call in range(num_calls):
        if what == "late":
            torch.cuda.synchronize()
            dist.barrier(on_host)
        if call in late:
            _be_late(*late[call])
        values.fill_(1.0)
        dist.all_reduce(values)
        if what == "right" and call % 10 == 0:
            num_pairs += 1
            _send_and_receive(values)
    torch.cuda.synchronize()
    took_us = (time.perf_counter() - begun_s) / num_calls * 1e6
    before = WARM_UPS + PROBES
    return {"us": took_us, "calls": num_calls, "calls_before": before, "pairs": num_pairs}


def _affordable(values: torch.Tensor, what: str, num_calls: int, seconds: float) -> int:
    """As many calls as there is time for: the same number on all ranks."""
    if what == "right":
        _send_and_receive(values)
    for _ in range(WARM_UPS):
        dist.all_reduce(values)
    torch.cuda.synchronize()
    begun_s = time.perf_counter()
    for _ in range(PROBES):
        dist.all_reduce(values)
    torch.cuda.synchronize()
    each_s = (time.perf_counter() - begun_s) / PROBES
    number = [max(10, min(num_calls, int(seconds / each_s)))]
    dist.broadcast_object_list(number, 0, device=torch.device("cpu"))
    return number[0]


def _send_and_receive(values: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        dist.send(values, 1)
    if dist.get_rank() == 1:
        dist.recv(values, 0)


def _be_late(cause: str, late_us: int) -> None:
    if cause == "sleep":
        time.sleep(late_us / 1e6)
    elif cause == "kernel":
        # About 1.7 GHz: the length is not the point, the order is.
        torch.cuda._sleep(late_us * 1700)  # type: ignore[no-untyped-call]
    else:
        end_s = time.perf_counter() + late_us / 1e6
        while time.perf_counter() < end_s:
            sum(range(100))


def build() -> None:
    from instrumented_kernels.all_reduce.plan import Plan
    from kprof.devices.build import BuildOptions, load_library
    from kprof.devices.groups import SoloGroup
    from kprof.devices.symmetric import _PEER_SOURCE
    from kprof.devices.targets import Target

    load_library(_PEER_SOURCE, BuildOptions(Target.CUDA))
    plan = Plan(SoloGroup(), device="cuda:0")
    plan.prepare(torch.ones(TENSOR_FLOATS, device="cuda:0"), "auto", None, is_recorded=True)
    plan.close()


def story(num_steps: int) -> dict[str, Any]:
    """Steps of a Triton all-reduce, ours in C++ and NCCL's, where the last rank has more to do before each."""
    import kprof
    from instrumented_kernels.all_reduce.plan import Plan
    from instrumented_kernels.triton_collectives.calls import Collectives
    from kprof.devices.groups import TorchGroup

    group, device = TorchGroup(), "cuda:0"
    recorder = kprof.recorder(device=device, rank=group.rank, world_size=group.world_size)
    collectives = Collectives(group, device, TENSOR_FLOATS)
    plan = Plan(group, device=device)
    values = torch.ones(TENSOR_FLOATS, device=device)
    out = torch.empty_like(values)
    for step in range(num_steps):
        collectives.all_reduce("oneshot", values, out, recorder)
        torch.cuda.synchronize()
        assert float(out[0]) == group.world_size
        plan(values, out=out, recorder=recorder)
        torch.cuda.synchronize()
        assert float(out[0]) == group.world_size
        if group.rank == group.world_size - 1:
            _be_late("kernel", 10_000)
        out.fill_(float(step))
        dist.all_reduce(out)
        torch.cuda.synchronize()
        assert float(out[0]) == group.world_size * step
    group.barrier()
    plan.close()
    return {"steps": num_steps}


if __name__ == "__main__":
    main()
