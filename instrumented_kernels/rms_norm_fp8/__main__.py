"""Runs rms_norm_fp8 as a workload, under `kprof record` or alone, and checks the results."""

from __future__ import annotations

from functools import partial
from typing import Final

from instrumented_kernels.fp8 import count_far
from instrumented_kernels.fp8_workload import MakeInput, rows_app
from instrumented_kernels.repeated_calls import Case
from instrumented_kernels.rms_norm_fp8.plan import VARIANTS, Plan, allocate, reference

_SCALE: Final = 8.0


def make_case(plan: Plan, variant: str, rows: int, columns: int, make_input: MakeInput) -> Case:
    """A call with its own inputs and outputs."""
    tensors = make_input(rows, columns), make_input(rows, columns), make_input(columns)
    out = allocate(tensors[0], plan.fp8)
    out.sum.fill_(float("nan"))

    def num_wrong() -> int:
        wanted, total = reference(*tensors, _SCALE, plan.fp8)
        return count_far(out.y, wanted) + int((out.sum != total).sum())

    return Case(partial(plan, *tensors, _SCALE, variant=variant, out=out), num_wrong)


app = rows_app("rms_norm_fp8", VARIANTS, 16384, Plan, make_case)

if __name__ == "__main__":
    app()
