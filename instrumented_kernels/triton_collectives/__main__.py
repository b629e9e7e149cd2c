"""Runs the Triton collectives on all ranks, compares every result with float64, and prints how long
calls take.

The time of a call is that of the slowest rank, without compilation and without the host's work:
calls run in batches of ten, each batch queued while the GPU sleeps, behind a call in which ranks
meet. The median of the batches is printed.

    kprof record --nproc 2 -o run.kprof -- python -m instrumented_kernels.triton_collectives

Without GPUs, put TRITON_INTERPRET=1 before the command. With `--kinds oneshot,cpp` the C++
all-reduce also runs, in the same trace.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import kprof
from instrumented_kernels.all_reduce.plan import Plan
from instrumented_kernels.queued_time import together_us
from instrumented_kernels.triton_collectives.calls import VARIANTS, Collectives, TorchHeap
from instrumented_kernels.workload import choose_device, joined_group
from kprof.devices.groups import Group
from kprof.errors import KprofError
from kprof.recording.rank.null_recorder import NullRecorder

_HIDDEN = 64
_TOLERANCE = 1e-5
_WARM_UPS = 2
# Few enough for the host to queue them while the GPU sleeps, recorded or not.
_CALLS_PER_BATCH = 10
_INPUTS = 8
_CPP = {"cpp": "auto", "cpp-oneshot": "oneshot", "cpp-twoshot": "twoshot_packets"}
_KINDS = (*VARIANTS, "dispatch", *_CPP)


@dataclass(frozen=True)
class Work:
    """What this rank's calls share.

    `plan` is of the C++ all-reduce, for runs that have one.
    """

    group: Group
    device: str
    recorder: Any
    collectives: Collectives
    plan: Plan | None


def main() -> None:
    """Parse, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=3, help="of each kind")
    parser.add_argument(
        "--numbers", default="5000", help="how many fp32 numbers to reduce; 100,2000 does both"
    )
    parser.add_argument("--tokens", type=int, default=24, help="rows to dispatch from each rank")
    parser.add_argument("--target", default="auto")
    parser.add_argument("--memory", choices=("kprof", "torch"), default="kprof")
    parser.add_argument(
        "--kinds", default="oneshot,twoshot,dispatch", help=f"of {', '.join(_KINDS)}; in this order"
    )
    arguments = parser.parse_args()
    try:
        kinds = arguments.kinds.split(",")
        if unknown := [kind for kind in kinds if kind not in _KINDS]:
            sys.exit(f"--kinds {unknown[0]} is not known; choose of {', '.join(_KINDS)}")
        run(arguments, kinds)
    except KprofError as error:
        sys.exit(f"triton_collectives: {error}")


def run(arguments: argparse.Namespace, kinds: list[str]) -> None:
    """Set up, warm up without recording, run every kind."""
    device = choose_device(arguments.target)
    with joined_group() as group:
        recorder = kprof.recorder(device=device, rank=group.rank, world_size=group.world_size)
        sizes = [int(size) for size in arguments.numbers.split(",")]
        max_numbers = max(*sizes, arguments.tokens * group.world_size * _HIDDEN)
        heap_of = TorchHeap if arguments.memory == "torch" else None
        collectives = Collectives(group, device, max_numbers, heap_of)
        plan = Plan(group, device=device) if set(kinds) & set(_CPP) else None
        work = Work(group, device, recorder, collectives, plan)
        recorder.align(group)
        for kind in kinds:
            if kind == "dispatch":
                for call in range(arguments.calls):
                    check_dispatch(work, arguments.tokens, call)
            else:
                for size in sizes:
                    check_all_reduces(work, kind, size, arguments.calls)
        group.barrier()
        recorder.align(group)
        if plan is not None:
            plan.close()


def numbers_of(rank: int, shape: tuple[int, ...], call: int) -> torch.Tensor:
    """A rank's input to a call. Every rank can compute all of them."""
    generator = torch.Generator().manual_seed(1000 * call + rank)
    return torch.randn(shape, generator=generator)


def targets_of(rank: int, num_tokens: int, world_size: int, call: int) -> torch.Tensor:
    """The target rank of each token of a rank. Later ranks get more."""
    generator = torch.Generator().manual_seed(7000 * call + rank)
    drawn = torch.rand(num_tokens, generator=generator).sqrt() * world_size
    return drawn.long().clamp(max=world_size - 1)


def check_all_reduces(work: Work, kind: str, n: int, num_calls: int) -> None:
    """Run the calls, print how long they take, and compare each with the sums in float64."""
    num_inputs = min(num_calls, _INPUTS)
    inputs = [numbers_of(work.group.rank, (n,), call).to(work.device) for call in range(num_inputs)]
    outs = [torch.full_like(inputs[0], float("nan")) for _ in range(num_calls)]
    launch = _all_reduce_of(work, kind)

    def calls(first: int, last: int) -> None:
        for call in range(first, last):
            launch(inputs[call % num_inputs], outs[call], work.recorder)

    not_recorded = partial(launch, inputs[0], torch.empty_like(inputs[0]), NullRecorder())
    for _ in range(_WARM_UPS):
        not_recorded()
    # The first call compiles the instrumented kernel.
    calls(0, 1)
    times_us = []
    for first in range(1, num_calls, _CALLS_PER_BATCH):
        last = min(first + _CALLS_PER_BATCH, num_calls)
        batch = partial(calls, first, last)
        elapsed_us = together_us(work.group, work.device, not_recorded, batch)
        times_us.append(elapsed_us / (last - first))
    if work.group.rank == 0 and times_us:
        print(times_text(kind, n, times_us))
    sums = [_sum_in_float64(work, n, call) for call in range(num_inputs)]
    for call, out in enumerate(outs):
        worst = float((out.double() - sums[call % num_inputs]).abs().max())
        assert worst < _TOLERANCE, (
            f"{kind}: off by {worst} in call {call} of rank {work.group.rank}"
        )


def times_text(kind: str, n: int, times_us: list[float]) -> str:
    """Of the batches, so that one slow call does not count."""
    return (
        f"{kind}: {n} numbers, {statistics.median(times_us):.2f} us a call (of {len(times_us)} "
        f"batches; fastest {min(times_us):.2f}, slowest {max(times_us):.2f})"
    )


def _sum_in_float64(work: Work, n: int, call: int) -> torch.Tensor:
    parts = [numbers_of(rank, (n,), call).double() for rank in range(work.group.world_size)]
    return torch.stack(parts).sum(0).to(work.device)


def _all_reduce_of(work: Work, kind: str) -> Callable[[torch.Tensor, torch.Tensor, Any], object]:
    if kind in VARIANTS:
        return partial(work.collectives.all_reduce, kind)
    assert work.plan is not None
    plan, variant = work.plan, _CPP[kind]
    return lambda x, out, recorder: plan(x, out=out, variant=variant, recorder=recorder)


def check_dispatch(work: Work, num_tokens: int, call: int) -> None:
    """Run one dispatch, and compare with what every rank has sent."""
    group = work.group
    world, shape = group.world_size, (num_tokens, _HIDDEN)
    x = numbers_of(group.rank, shape, call).to(work.device)
    targets = targets_of(group.rank, num_tokens, world, call).to(work.device)
    received = work.collectives.dispatch(x, targets, num_tokens, work.recorder)
    for rank, rows in enumerate(received):
        sent = numbers_of(rank, shape, call)[
            targets_of(rank, num_tokens, world, call) == group.rank
        ]
        assert torch.equal(rows.cpu(), sent), f"dispatch: rows of rank {rank} in call {call}"


if __name__ == "__main__":
    main()
