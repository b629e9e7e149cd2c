"""Run rms_norm_fp8 as a workload: under `kprof record`, or alone; verify it and print its time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from instrumented_kernels.fp8 import count_far
from instrumented_kernels.local_workload import (
    Case,
    GraphOption,
    RepeatsOption,
    TargetOption,
    Work,
    run,
)
from instrumented_kernels.rms_norm_fp8.plan import Plan, allocate
from instrumented_kernels.rms_norm_fp8.reference import reference

if TYPE_CHECKING:
    import torch

    from kprof.recording.null_recorder import AnyRecorder

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_SCALE: Final = 8.0


@app.command()
def main(
    variant: Annotated[str, typer.Option(help="pointwise, vectors, shared or tuned")] = "tuned",
    rows: Annotated[int, typer.Option(help="n")] = 64,
    columns: Annotated[int, typer.Option(help="d")] = 16384,
    bf16: Annotated[bool, typer.Option(help="bf16 in place of fp16")] = False,
    repeats: RepeatsOption = 3,
    graph: GraphOption = False,
    target: TargetOption = "auto",
) -> None:
    """Run, compare with torch, print the time.

    Exit non-zero when a value is more than one fp8 step away.
    """

    def make_work(device: str) -> Work:
        plan = Plan(device)
        return Work(
            plan,
            lambda seed: _case(plan, variant, rows, columns, bf16, seed),
            f"{variant}, {rows} x {columns}, {'bf16' if bf16 else 'fp16'}",
        )

    run("rms_norm_fp8", make_work, target, repeats, graph)


def _case(plan: Plan, variant: str, rows: int, columns: int, bf16: bool, seed: int) -> Case:
    import torch

    if rows < 0 or columns < 1:
        raise ValueError(f"{rows} rows of {columns}: give 0 or more rows of 1 or more")
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.bfloat16 if bf16 else torch.float16

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype).to(plan.device)

    tensors = make(rows, columns), make(rows, columns), make(columns)
    out = allocate(tensors[0], plan.fp8)
    out.sum.fill_(float("nan"))

    def launch(recorder: AnyRecorder) -> None:
        plan(*tensors, _SCALE, variant=variant, out=out, recorder=recorder)

    def num_wrong() -> int:
        wanted, total = reference(*tensors, _SCALE, plan.fp8)
        return count_far(out.y, wanted) + int((out.sum != total).sum())

    return Case(launch, num_wrong)


if __name__ == "__main__":
    app()
