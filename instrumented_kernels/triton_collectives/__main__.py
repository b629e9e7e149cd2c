"""Runs the Triton collectives on all ranks and compares every result with float64.

    kprof record --nproc 2 -o run.kprof -- python -m instrumented_kernels.triton_collectives

Without GPUs, with TRITON_INTERPRET=1 in front.
"""

from __future__ import annotations

import argparse

import torch

import kprof
from instrumented_kernels.triton_collectives.calls import VARIANTS, Collectives, TorchHeap
from instrumented_kernels.workload import choose_device, joined_group
from kprof.groups import Group

_HIDDEN = 64
_TOLERANCE = 1e-5


def main() -> None:
    """Parse, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--numbers", type=int, default=5000)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--target", default="auto")
    parser.add_argument("--memory", choices=("kprof", "torch"), default="kprof")
    arguments = parser.parse_args()
    device = choose_device(arguments.target)
    with joined_group() as group:
        recorder = kprof.recorder(device=device, rank=group.rank, world_size=group.world_size)
        recorder.align(group)
        max_numbers = max(arguments.numbers, arguments.tokens * group.world_size * _HIDDEN)
        heap_of = TorchHeap if arguments.memory == "torch" else None
        collectives = Collectives(group, recorder, device, max_numbers, heap_of)
        for call in range(arguments.calls):
            for variant in VARIANTS:
                check_all_reduce(collectives, group, device, arguments.numbers, variant, call)
            check_dispatch(collectives, group, device, arguments.tokens, call)
        group.barrier()
        recorder.align(group)


def numbers_of(rank: int, shape: tuple[int, ...], call: int) -> torch.Tensor:
    """What a rank contributes to a call; every rank can make every other's."""
    generator = torch.Generator().manual_seed(1000 * call + rank)
    return torch.randn(shape, generator=generator)


def targets_of(rank: int, num_tokens: int, world_size: int, call: int) -> torch.Tensor:
    """Where a rank's tokens go: more of them to later ranks."""
    generator = torch.Generator().manual_seed(7000 * call + rank)
    drawn = torch.rand(num_tokens, generator=generator).sqrt() * world_size
    return drawn.long().clamp(max=world_size - 1)


def check_all_reduce(
    collectives: Collectives, group: Group, device: str, n: int, variant: str, call: int
) -> None:
    """One all-reduce against the sum in float64."""
    out = collectives.all_reduce(numbers_of(group.rank, (n,), call).to(device), variant)
    parts = [numbers_of(rank, (n,), call).double() for rank in range(group.world_size)]
    worst = float((out.cpu().double() - torch.stack(parts).sum(0)).abs().max())
    assert worst < _TOLERANCE, f"{variant}: off by {worst} in call {call} of rank {group.rank}"


def check_dispatch(
    collectives: Collectives, group: Group, device: str, num_tokens: int, call: int
) -> None:
    """One dispatch against what every rank has sent."""
    world, shape = group.world_size, (num_tokens, _HIDDEN)
    x = numbers_of(group.rank, shape, call).to(device)
    targets = targets_of(group.rank, num_tokens, world, call).to(device)
    received = collectives.dispatch(x, targets, num_tokens)
    for rank, rows in enumerate(received):
        sent = numbers_of(rank, shape, call)[
            targets_of(rank, num_tokens, world, call) == group.rank
        ]
        assert torch.equal(rows.cpu(), sent), f"dispatch: rows of rank {rank} in call {call}"


if __name__ == "__main__":
    main()
