"""Runs swiglu_fp8 as a workload, under `kprof record` or alone, and checks the results."""

from __future__ import annotations

from functools import partial
from typing import Final

from instrumented_kernels.fp8 import count_far
from instrumented_kernels.fp8_workload import MakeInput, rows_app
from instrumented_kernels.repeated_calls import Case
from instrumented_kernels.swiglu_fp8.plan import VARIANTS, Plan, allocate, reference
from kprof.devices.on_use import torch

_SCALE: Final = 8.0


def make_case(plan: Plan, variant: str, rows: int, columns: int, make_input: MakeInput) -> Case:
    """A call with its own input and output."""
    x = make_input(rows, 2 * columns)
    out = allocate(x, plan.fp8)
    out.view(torch.uint8).fill_(0x55)

    launch = partial(plan, x, _SCALE, variant=variant, out=out)
    return Case(launch, lambda: count_far(out, reference(x, _SCALE, plan.fp8)))


app = rows_app("swiglu_fp8", VARIANTS, 8192, Plan, make_case)

if __name__ == "__main__":
    app()
