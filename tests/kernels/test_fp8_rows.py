"""rms_norm_fp8 and swiglu_fp8: correctly rounded, whatever the shape and the address.

As gfx942 machine code with that GPU's fp8 (widths.py: HAS_FNUZ), else without subnormals and large values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from fp8_values import assert_rounded
from single_gpu import BUILDS, assert_refused, at_offset, cpu_options, plans_of, poisoned, record
from widths import needs_all_fp8

from combinations import all_pairs
from instrumented_kernels import rms_norm_fp8, swiglu_fp8
from instrumented_kernels.fp8 import RowsKind
from instrumented_kernels.rms_norm_fp8 import Normalised
from instrumented_kernels.rms_norm_fp8 import plan as rms_plans
from instrumented_kernels.swiglu_fp8 import plan as swiglu_plans

EPSILON = 1e-5
DTYPES = [torch.float16, torch.bfloat16]
Tensors = list[torch.Tensor]


def rms_inputs(n: int, d: int, dtype: torch.dtype, offset: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(n * 1000 + d)
    shapes = [(n, d), (n, d), (d,)]
    return [
        at_offset(torch.randn(shape, generator=generator).to(dtype), offset) for shape in shapes
    ]


def exact(tensors: Tensors, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """y in float64, from the sum as it is stored."""
    x, residual, weight = tensors
    total = (x.double() + residual.double()).to(x.dtype)
    wide = total.double()
    root = (wide.square().mean(dim=1, keepdim=True) + EPSILON).sqrt()
    return scale * weight.double() * wide / root, total


def check_rms(
    plan: Any, tensors: Tensors, variant: str, scale: float = 3.7, offset: int = 0
) -> None:
    shape = tuple(tensors[0].shape)
    wanted, total = exact(tensors, scale)
    with (
        poisoned(shape, plan.fp8, offset) as y,
        poisoned(shape, tensors[0].dtype, offset) as stored,
    ):
        plan(*tensors, scale, epsilon=EPSILON, variant=variant, out=Normalised(y, stored))
        assert torch.equal(stored.nan_to_num(7.0), total.nan_to_num(7.0))
        assert_rounded(y, wanted)


def odd_rms() -> Tensors:
    """Rows of one odd value among ones: saturated, subnormal, zero, infinite and NaN."""
    values = [60000.0, -60000.0, 6e-8, -0.0, float("inf"), float("-inf"), float("nan")]
    x = torch.ones(len(values), 64)
    x[:, 5] = torch.tensor(values)
    return [x.half(), torch.zeros_like(x).half(), torch.linspace(-2, 2, 64).half()]


def swiglu_inputs(n: int, d: int, dtype: torch.dtype, offset: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(n * 1000 + d)
    return [at_offset((3 * torch.randn(n, 2 * d, generator=generator)).to(dtype), offset)]


def check_swiglu(
    plan: Any, tensors: Tensors, variant: str, scale: float = 3.7, offset: int = 0
) -> None:
    gate, up = tensors[0].double().chunk(2, dim=1)
    wanted = scale * (gate / (1 + torch.exp(-gate))) * up
    with poisoned(tuple(wanted.shape), plan.fp8, offset) as y:
        plan(*tensors, scale, variant=variant, out=y)
        assert_rounded(y, wanted)


def odd_swiglu() -> Tensors:
    odd = [0.0, -0.0, 6e-8, -20.0, -60.0, -80.0, 30.0, 65504.0, -65504.0]
    odd += [float("inf"), float("nan"), -5e-4, 1.0]
    gate, up = torch.cartesian_prod(torch.tensor(odd), torch.tensor(odd)).half().t()
    return [torch.stack([torch.cat([gate, up]), torch.cat([up, gate])]).contiguous()]


@dataclass(frozen=True)
class Kernel:
    """How a kernel is called and checked. `regions` have an event for each row of this width."""

    plan_of: Callable[[int, torch.dtype], Any]
    inputs: Callable[..., Tensors]
    check: Callable[..., None]
    odd: Callable[[], Tensors]
    odd_scales: tuple[float, ...]
    regions: tuple[str, ...]
    width: int


RMS, SWIGLU = "rms_norm_fp8", "swiglu_fp8"
KERNELS = {
    RMS: Kernel(
        plans_of(rms_norm_fp8.Plan),
        rms_inputs,
        check_rms,
        odd_rms,
        (1e-4, 0.01, 1.0, 900.0, -5.0),
        ("add", "normalise"),
        1024,
    ),
    SWIGLU: Kernel(
        plans_of(swiglu_fp8.Plan),
        swiglu_inputs,
        check_swiglu,
        odd_swiglu,
        (1e-3, 1.0, 700.0, -2.0),
        ("activate",),
        304,
    ),
}
VARIANTS = {RMS: rms_plans.VARIANTS, SWIGLU: swiglu_plans.VARIANTS}
CASES = [(name, variant) for name, variants in VARIANTS.items() for variant in variants]
SHAPES = [(0, 8), (1, 1), (3, 7), (2, 8), (5, 250), (2, 1024), (2, 1032), (1, 4104), (7, 64)]


@pytest.mark.amd
@pytest.mark.parametrize(("build", "dtype", "case"), all_pairs(BUILDS, DTYPES, CASES))
def test_correctly_rounded(
    build: tuple[int, torch.dtype], dtype: torch.dtype, case: tuple[str, str]
) -> None:
    kernel, variant = KERNELS[case[0]], case[1]
    for n, d in SHAPES:
        kernel.check(kernel.plan_of(*build), kernel.inputs(n, d, dtype), variant)


@pytest.mark.amd
@pytest.mark.parametrize(("name", "variant"), CASES)
@pytest.mark.parametrize("offset", [1, 4, 8])
def test_any_address(name: str, variant: str, offset: int) -> None:
    kernel = KERNELS[name]
    plan = kernel.plan_of(*BUILDS[-1])
    for n, d in [(3, 64), (2, 77)]:
        tensors = kernel.inputs(n, d, torch.float16, offset)
        kernel.check(plan, tensors, variant, offset=offset)


@pytest.mark.amd
@needs_all_fp8
@pytest.mark.parametrize(("name", "variant"), CASES)
@pytest.mark.parametrize("build", BUILDS)
def test_what_is_too_large_or_too_small_or_no_number(
    name: str, variant: str, build: tuple[int, torch.dtype]
) -> None:
    kernel = KERNELS[name]
    for scale in kernel.odd_scales:
        kernel.check(kernel.plan_of(*build), kernel.odd(), variant, scale)


@pytest.mark.amd
@pytest.mark.parametrize("name", KERNELS)
def test_what_is_recorded(name: str, tmp_path: Path) -> None:
    kernel = KERNELS[name]
    plan, tensors = kernel.plan_of(*BUILDS[-1]), kernel.inputs(5, kernel.width, torch.float16)
    trace = record(
        tmp_path / "run.kprof",
        lambda recorder: [
            plan(*tensors, 1.0, variant=variant, recorder=recorder) for variant in VARIANTS[name]
        ],
    )
    rows = trace.frame(
        "SELECT kernel, region, count(*) AS n, sum(row) AS rows FROM events GROUP BY ALL"
    )
    found = {(row.kernel, row.region): (row.n, row.rows) for row in rows.itertuples()}
    for variant in VARIANTS[name]:
        for region in kernel.regions:
            assert found[f"{name}/{variant}", region] == (5, 0 + 1 + 2 + 3 + 4)


@pytest.mark.amd
def test_every_kernel_of_the_tuned_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in (*rms_plans._FOR_FEW_ROWS, *rms_plans._FOR_MANY_ROWS):
        monkeypatch.setattr(rms_plans, "_FOR_FEW_ROWS", (kernel,))
        plan = rms_norm_fp8.Plan(options=cpu_options(*BUILDS[0]))
        for n, d in [
            (3, 1000),
            (5, 64),
        ]:  # rows of whole vectors: the kernel for many takes no others
            check_rms(plan, rms_inputs(n, d, torch.bfloat16), "tuned")


@pytest.mark.amd
@pytest.mark.parametrize("build", BUILDS)
def test_rows_that_are_whole_vectors_of_a_block(build: tuple[int, torch.dtype]) -> None:
    """One kernel for a row per processor at most, one for more."""
    plan = KERNELS[RMS].plan_of(*build)
    for dtype in (torch.float16, torch.bfloat16):
        for n, name in [(1, "whole1"), (5, "whole2")]:
            check_rms(plan, rms_inputs(n, 4096, dtype), "tuned")
            assert plan._geometry(RowsKind(n, 4096, dtype, "tuned", is_whole=True))[0] == name


def test_rows_that_no_block_holds() -> None:
    """Longer than the registers of a block, and than what `shared` keeps."""
    plan = KERNELS[RMS].plan_of(*BUILDS[-1])
    for variant in ("shared", "tuned"):
        check_rms(plan, rms_inputs(1, 16400, torch.bfloat16), variant)


@pytest.mark.amd
def test_many_blocks_per_row() -> None:
    plan = KERNELS[SWIGLU].plan_of(*BUILDS[-1])
    for n, d in [(3, 1000), (1, 4096), (2, 77), (7, 1536)]:
        check_swiglu(plan, swiglu_inputs(n, d, torch.float16), "tuned")


@pytest.mark.amd
def test_in_place() -> None:
    plan = KERNELS[RMS].plan_of(*BUILDS[-1])
    for variant in VARIANTS[RMS]:
        for at in (0, 1):
            tensors = rms_inputs(3, 200, torch.float16)
            wanted, total = exact(tensors, 2.0)
            out = Normalised(torch.empty(3, 200).to(plan.fp8), tensors[at])
            plan(*tensors, 2.0, epsilon=EPSILON, variant=variant, out=out)
            assert torch.equal(tensors[at], total)
            assert_rounded(out.y, wanted)


def test_bad_calls_of_rms_norm_are_refused_before_any_launch() -> None:
    plan = rms_norm_fp8.Plan(options=cpu_options(32))
    x, residual, weight = rms_inputs(4, 8, torch.float16)
    cases = [
        (ValueError, "the fp8 scale is 0", (x, residual, weight, 0.0)),
        (ValueError, "the fp8 scale is nan", (x, residual, weight, float("nan"))),
        (ValueError, "the fp8 scale is 1e[+]39", (x, residual, weight, 1e39)),
        (ValueError, "the fp8 scale is 1e-60", (x, residual, weight, 1e-60)),
        (ValueError, "the fp8 scale is 2000000", (x, residual, weight, 2 * 10**600)),
        (TypeError, "the fp8 scale is 'large'; give a number", (x, residual, weight, "large")),
        (TypeError, "weight must be a tensor, got float", (x, residual, 1.0, 1.0)),
        (TypeError, "x must be fp16 or bf16", (x.float(), residual, weight, 1.0)),
        (TypeError, "residual must be torch.float16", (x, residual.bfloat16(), weight, 1.0)),
        (ValueError, r"weight must have shape \[8\]", (x, residual, weight[:4], 1.0)),
        (ValueError, r"x must have shape \[n, d\]", (x[0], residual, weight, 1.0)),
        (ValueError, "x must be contiguous", (x[:, ::2], residual[:, ::2], weight[::2], 1.0)),
    ]
    assert_refused(plan, cases)
    with pytest.raises(ValueError, match="variant 'fast' is not known"):
        plan(x, residual, weight, 1.0, variant="fast")
    for epsilon in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"epsilon is {epsilon}; give 0 or more"):
            plan(x, residual, weight, 1.0, epsilon=epsilon)
    for epsilon in (1e300, 1e-50, 4e38):
        with pytest.raises(ValueError, match=r"epsilon is .*; give a number that fp32 holds, or 0"):
            plan(x, residual, weight, 1.0, epsilon=epsilon)
    with pytest.raises(TypeError, match="epsilon is 'small'; give a number"):
        plan(x, residual, weight, 1.0, epsilon="small")  # type: ignore[arg-type]
    assert plan._num_calls == 0


def test_bad_calls_of_swiglu_are_refused_before_any_launch() -> None:
    plan = swiglu_fp8.Plan(options=cpu_options(32))
    (x,) = swiglu_inputs(4, 8, torch.float16)
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
