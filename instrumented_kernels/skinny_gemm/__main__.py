"""Runs skinny_gemm as a workload, under `kprof record` or alone, and checks the results."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import typer

from instrumented_kernels import options
from instrumented_kernels.repeated_calls import Case, Work, run
from instrumented_kernels.skinny_gemm.plan import Plan, Roles, allocate
from kprof.devices.groups import Group
from kprof.devices.on_use import torch

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_SCALE: Final = 0.25
# The matrix units of some GPUs accumulate with fewer bits than fp32.
_ERROR: Final = 1e-3


@app.command()
def main(
    variant: Annotated[
        str | None,
        typer.Option(
            help="tiled, split_k, specialised, tuned, direct, ring or groups; by default by shape"
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="M, up to 32")] = 8,
    rows: Annotated[int, typer.Option(help="N")] = 2304,
    depth: Annotated[int, typer.Option(help="K")] = 16384,
    producers: Annotated[
        int | None, typer.Option(help="warps that load weights, of specialised and tuned")
    ] = None,
    consumers: Annotated[
        int | None, typer.Option(help="warps that multiply, of specialised and tuned")
    ] = None,
    slots: Annotated[int | None, typer.Option(help="of the queue of specialised and tuned")] = None,
    token_producers: Annotated[
        int | None, typer.Option(help="warps that load tokens, of specialised and tuned")
    ] = None,
    repeats: options.Repeats = 3,
    graph: options.Graph = False,
    target: options.LocalTarget = "auto",
) -> None:
    """Run, compare with float64, print the time. Exit non-zero if a value is too far off."""
    numbers = zip(Roles._fields, (producers, consumers, slots, token_producers), strict=True)
    given = {name: number for name, number in numbers if number is not None}

    def make_work(device: str, _: Group) -> Work:
        plan = Plan(device)
        chosen = variant or plan.default_variant(tokens, rows)
        roles = plan.default_roles(chosen, tokens)._replace(**given) if given else None
        label = f"{chosen}, {tokens} x {rows} x {depth}"
        return Work(
            plan, lambda seed: _case(plan, chosen, (tokens, rows, depth), roles, seed), label
        )

    run("skinny_gemm", make_work, target, repeats, graph)


def _case(
    plan: Plan, variant: str, shape: tuple[int, int, int], roles: Roles | None, seed: int
) -> Case:
    if min(shape) < 1:
        raise ValueError(f"{shape[0]} x {shape[1]} x {shape[2]}: give 1 or more of each")
    generator = torch.Generator().manual_seed(seed)
    num_tokens, num_rows, depth = shape
    x, w = (
        torch.randn(rows, depth, generator=generator).to(plan.fp8).to(plan.device)
        for rows in (num_tokens, num_rows)
    )
    out = allocate(x, w).fill_(float("nan"))

    def num_wrong() -> int:
        wanted = _SCALE * x.double() @ w.double().t()
        size = _SCALE * x.double().abs() @ w.double().abs().t()
        is_right = (out.double() - wanted).abs() <= _ERROR * (wanted.abs() + size / 16)
        return int((~is_right).sum())

    launch = partial(plan, x, w, _SCALE, variant=variant, roles=roles, out=out)
    return Case(launch, num_wrong)


if __name__ == "__main__":
    app()
