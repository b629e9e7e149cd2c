"""swiglu_fp8: correctly rounded, whatever the shape and the address.

As gfx942 machine code with that GPU's fp8 (widths.py: HAS_FNUZ), else without subnormals and large values.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fp8_values import assert_rounded
from single_gpu import BUILDS, assert_refused, at_offset, cpu_options, plans_of, poisoned, record
from widths import needs_all_fp8

from combinations import all_pairs
from instrumented_kernels.swiglu_fp8 import Plan
from instrumented_kernels.swiglu_fp8.plan import VARIANTS

SHAPES = [(0, 8), (1, 1), (3, 7), (2, 8), (5, 250), (2, 1032)]
DTYPES = [torch.float16, torch.bfloat16]


plan_of = plans_of(Plan)


def inputs(n: int, d: int, dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n * 1000 + d)
    return at_offset((3 * torch.randn(n, 2 * d, generator=generator)).to(dtype), offset)


def check_call(
    plan: Plan, x: torch.Tensor, variant: str, scale: float = 3.7, offset: int = 0
) -> None:
    gate, up = x.double().chunk(2, dim=1)
    wanted = scale * (gate / (1 + torch.exp(-gate))) * up
    with poisoned(tuple(wanted.shape), plan.fp8, offset) as y:
        plan(x, scale, variant=variant, out=y)
        assert_rounded(y, wanted)


@pytest.mark.amd
@pytest.mark.parametrize(("build", "dtype", "variant"), all_pairs(BUILDS, DTYPES, VARIANTS))
def test_correctly_rounded(
    build: tuple[int, torch.dtype], dtype: torch.dtype, variant: str
) -> None:
    for n, d in SHAPES:
        check_call(plan_of(*build), inputs(n, d, dtype), variant)


@pytest.mark.amd
def test_many_blocks_per_row() -> None:
    plan = plan_of(*BUILDS[-1])
    for n, d in [(3, 1000), (1, 4096), (2, 77), (7, 1536)]:
        check_call(plan, inputs(n, d, torch.float16), "tuned")


@pytest.mark.amd
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("offset", [1, 4, 8])
def test_any_address(variant: str, offset: int) -> None:
    plan = plan_of(*BUILDS[-1])
    for n, d in [(3, 64), (2, 77)]:
        check_call(plan, inputs(n, d, torch.float16, offset), variant, offset=offset)


@pytest.mark.amd
@needs_all_fp8
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("build", BUILDS)
def test_what_is_too_large_or_too_small_or_no_number(
    variant: str, build: tuple[int, torch.dtype]
) -> None:
    odd = [0.0, -0.0, 6e-8, -20.0, -60.0, -80.0, 30.0, 65504.0, -65504.0]
    odd += [float("inf"), float("nan"), -5e-4, 1.0]
    gate, up = torch.cartesian_prod(torch.tensor(odd), torch.tensor(odd)).half().t()
    x = torch.stack([torch.cat([gate, up]), torch.cat([up, gate])]).contiguous()
    for scale in (1e-3, 1.0, 700.0, -2.0):
        check_call(plan_of(*build), x, variant, scale)


def test_bad_calls_are_refused_before_any_launch() -> None:
    plan = Plan(options=cpu_options(32))
    x = inputs(4, 8, torch.float16)
    cases = [
        (ValueError, "the fp8 scale is 0", (x, 0.0)),
        (ValueError, "the fp8 scale is inf", (x, float("inf"))),
        (TypeError, "x must be a tensor, got list", (x.tolist(), 1.0)),
        (TypeError, "x must be fp16 or bf16", (x.float(), 1.0)),
        (ValueError, r"shape \[n, 2 d\], got \[4, 15\]", (x[:, :15], 1.0)),
        (ValueError, "x must be contiguous", (x[:, ::2], 1.0)),
    ]
    assert_refused(plan, cases)
    with pytest.raises(ValueError, match="variant 'fast' is not known"):
        plan(x, 1.0, variant="fast")
    assert plan._num_calls == 0


@pytest.mark.amd
def test_what_is_recorded(tmp_path: Path) -> None:
    plan = plan_of(*BUILDS[-1])
    x = inputs(5, 304, torch.float16)
    trace = record(
        tmp_path / "run.kprof",
        lambda recorder: [plan(x, 1.0, variant=variant, recorder=recorder) for variant in VARIANTS],
    )
    rows = trace.frame(
        "SELECT kernel, region, count(*) AS n, sum(row) AS rows FROM events GROUP BY ALL"
    )
    found = {(row.kernel, row.region): (row.n, row.rows) for row in rows.itertuples()}
    for variant in VARIANTS:
        assert found[f"swiglu_fp8/{variant}", "activate"] == (5, 0 + 1 + 2 + 3 + 4)
