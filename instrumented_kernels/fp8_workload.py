"""The command line of kernels that turn rows of 16-bit floats into fp8."""

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import typer

from instrumented_kernels import options
from instrumented_kernels.fp8 import Fp8Plan
from instrumented_kernels.repeated_calls import Case, Work, run
from kprof.devices.groups import Group
from kprof.devices.on_use import torch

Plan = TypeVar("Plan", bound=Fp8Plan)


# Makes a tensor of random numbers, of the shape given, on the plan's device.
MakeInput = Callable[..., "torch.Tensor"]


def rows_app(
    name: str,
    variants: Sequence[str],
    num_columns: int,
    make_plan: Callable[[str], Plan],
    make_case: Callable[[Plan, str, int, int, MakeInput], Case],
) -> typer.Typer:
    """A command that runs calls, compares them with torch, and prints the time.

    It calls `make_case(plan, variant, rows, columns, make_input)` once per call; rows have
    `num_columns` unless told otherwise.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @app.command()
    def main(
        variant: Annotated[str, typer.Option(help=", ".join(variants))] = "tuned",
        rows: Annotated[int, typer.Option(help="n")] = 64,
        columns: Annotated[int, typer.Option(help="d")] = num_columns,
        bf16: Annotated[bool, typer.Option(help="bf16 in place of fp16")] = False,
        repeats: options.Repeats = 3,
        graph: options.Graph = False,
        target: options.LocalTarget = "auto",
    ) -> None:
        """Run, compare with torch, print the time.

        Exit non-zero when a value is more than one fp8 step away.
        """

        def make_work(device: str, _: Group) -> Work:
            if rows < 0 or columns < 1:
                raise ValueError(f"{rows} rows of {columns}: give 0 or more rows of 1 or more")
            plan = make_plan(device)
            return Work(
                plan,
                lambda seed: make_case(
                    plan, variant, rows, columns, _make_input(plan.device, bf16, seed)
                ),
                f"{variant}, {rows} x {columns}, {'bf16' if bf16 else 'fp16'}",
            )

        run(name, make_work, target, repeats, graph)

    return app


def _make_input(device: str, bf16: bool, seed: int) -> MakeInput:
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.bfloat16 if bf16 else torch.float16
    return lambda *shape: torch.randn(shape, generator=generator).to(dtype).to(device)
