"""Runs a kernel of ours under the PyTorch profiler on every rank and keeps its trace in the
capture.

Started under `kprof record --nproc N` by test_torch_profiler_gpu.py, and on the CPU target by
tests/kernels/test_torch_profiler.py. On the CPU there are no GPU kernels for the profiler to see:
there a slice of its own around each launch stands for the kernel.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

import kprof
from instrumented_kernels.kernel_library import KernelLibrary, LaunchSequence
from instrumented_kernels.workload import choose_device, joined_group
from kprof.devices.groups import Group
from kprof.recording.rank.null_recorder import NullRecorder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernel", choices=sorted(MAKE), default="all_reduce")
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--target", default="auto")
    arguments = parser.parse_args()
    device = choose_device(arguments.target)
    if device == "cpu":
        annotate_launches()
    with joined_group() as group:
        call = MAKE[arguments.kernel](group, device)
        call(NullRecorder())
        recorder = kprof.recorder(device=device)
        recorder.align(group)
        with profile(activities=activities(device)) as profiler:
            # Seen by the profiler alone: the recorded launches must be found among these.
            for _ in range(2):
                call(NullRecorder())
            for _ in range(arguments.calls):
                group.barrier()
                call(recorder)
        recorder.torch_trace(profiler)
        recorder.align(group)


def make_all_to_all(group: Group, device: str) -> Any:
    """One call of the all-to-all with small tensors, waited for."""
    from instrumented_kernels.all_to_all import Plan, Problem
    from instrumented_kernels.all_to_all.routing import make_inputs

    problem = Problem(8 * group.world_size, 4, 512, 32)
    plan = Plan(group, problem, device=device)
    inputs = make_inputs(problem, 32, group.rank).to(device)
    return lambda recorder: plan(inputs.x, inputs.indices, inputs.weights, recorder=recorder)


def make_all_reduce(group: Group, device: str) -> Any:
    """A matrix product whose parts are summed over the ranks, as in a layer split over GPUs. Waited for."""
    from instrumented_kernels.all_reduce import Plan

    plan = Plan(group, device=device)
    size = 64 if device == "cpu" else 512
    x, weights = (torch.randn(size, size).to(device, torch.bfloat16) for _ in range(2))

    def call(recorder: Any) -> None:
        plan(torch.mm(x, weights), variant="oneshot", recorder=recorder)
        plan.wait()

    return call


MAKE = {"all_to_all": make_all_to_all, "all_reduce": make_all_reduce}


def activities(device: str) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU] + ([] if device == "cpu" else [ProfilerActivity.CUDA])


def annotate_launches() -> None:
    run = KernelLibrary.run

    def annotated(self: Any, launches: LaunchSequence, first: int, count: int) -> None:
        for idx in range(first, first + count):
            with record_function(launches.names[idx]):
                run(self, launches, idx, 1)

    KernelLibrary.run = annotated  # type: ignore[method-assign]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
