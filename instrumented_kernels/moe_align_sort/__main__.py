"""Runs moe_align_sort as a workload, under `kprof record` or alone.

Checks the results and prints the time.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from instrumented_kernels import options
from instrumented_kernels.moe_align_sort.plan import (
    Plan,
    Problem,
    Sorted,
    allocate,
    check,
    check_num_experts,
    reference,
)
from instrumented_kernels.repeated_calls import Case, Work, run
from kprof.devices.groups import Group
from kprof.devices.on_use import torch

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    variant: Annotated[str, typer.Option(help="single_block, dcp or chained")] = "chained",
    tokens: Annotated[int, typer.Option(help="n")] = 2048,
    top_k: Annotated[int, typer.Option(help="K, different experts of each token")] = 8,
    experts: Annotated[int, typer.Option(help="E")] = 256,
    block_size: Annotated[int, typer.Option(help="B, to which runs of experts are padded")] = 64,
    hot: Annotated[float, typer.Option(help="share of the choices that fall on expert 0")] = 0.0,
    blocks: Annotated[
        int | None, typer.Option(help="blocks of the grid (default: what suits the device)")
    ] = None,
    repeats: options.Repeats = 3,
    graph: options.Graph = False,
    target: options.LocalTarget = "auto",
) -> None:
    """Run, compare with torch's sort, print the time. Exit non-zero if a value is wrong."""

    def make_work(device: str, _: Group) -> Work:
        kind = Problem(tokens * top_k, experts, block_size, variant, blocks)
        plan = Plan(device)
        label = f"{variant}, {tokens} tokens x {top_k} of {experts} experts, blocks of {block_size}"
        return Work(plan, lambda seed: _case(plan, kind, top_k, hot, seed), label)

    run("moe_align_sort", make_work, target, repeats, graph)


def _case(plan: Plan, kind: Problem, top_k: int, hot: float, seed: int) -> Case:
    ids = make_ids(kind.num_ids // max(1, top_k), top_k, kind.num_experts, hot, seed)
    ids = ids.to(plan.device)
    check(ids, kind, plan.device)
    out = allocate(ids, kind)
    for tensor in out:
        tensor.fill_(-7)

    launch = partial(
        plan,
        ids,
        kind.num_experts,
        kind.block_size,
        variant=kind.variant,
        num_blocks=kind.num_blocks,
        out=out,
    )
    return Case(launch, lambda: count_wrong(out, reference(ids, kind.num_experts, kind.block_size)))


def count_wrong(out: Sorted, expected: Sorted) -> int:
    """The number of elements that differ."""
    return sum(int((got != wanted).sum()) for got, wanted in zip(out, expected, strict=True))


def make_ids(n: int, top_k: int, num_experts: int, hot: float, seed: int) -> torch.Tensor:
    """Experts for n tokens: a share `hot` of all choices is expert 0, the rest are even.

    int32 [n, K].
    """
    if n < 0 or top_k < 0:
        raise ValueError(f"{n} tokens with {top_k} experts each: give 0 or more of both")
    check_num_experts(num_experts)
    if not 0 <= hot <= 1:
        raise ValueError(f"--hot takes a share from 0 to 1, got {hot}")
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(0, num_experts, (n, 1), generator=generator)
    # A token's experts are different, at equal distances.
    ids = (first + torch.arange(top_k) * max(1, num_experts // max(1, top_k))) % num_experts
    is_hot = torch.rand(n, top_k, generator=generator) < hot
    return torch.where(is_hot, 0, ids).int()


if __name__ == "__main__":
    app()
