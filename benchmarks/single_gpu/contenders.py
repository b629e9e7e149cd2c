"""The kernels for one GPU and their peers: for every shape, inputs in rotation and one call per contender."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.single_gpu.timing import NumberedCall, num_rotated
from instrumented_kernels import moe_align_sort, rms_norm_fp8, skinny_gemm, swiglu_fp8
from instrumented_kernels.moe_align_sort.__main__ import make_ids

DEVICE = "cuda"
EXPERTS, TOP_K, BLOCK = 256, 8, 64
SCALE = 4.0
ROWS = (1, 16, 64, 256, 512, 1024, 2048)
WIDTH = 16384
GEMM_SHAPES = ((2304, 16384), (13312, 16384), (16384, 6656))
GEMM_TOKENS = (1, 8, 16, 32)


@dataclass(frozen=True)
class Case:
    """One shape. `num_bytes` of memory that a call must move.

    `errors` by contender, of a check of its outputs.
    """

    kernel: str
    shape: str
    num_bytes: int
    num_inputs: int
    calls: dict[str, NumberedCall]
    recorded: Callable[[Any], NumberedCall]
    errors: Callable[[], dict[str, float]] = field(default=dict)


def moe_cases() -> Iterator[Case]:
    """Small and large batches; even routing, half of the choices on one expert, all on one."""
    plan = moe_align_sort.Plan(DEVICE)
    sizes = [(8192, 0.0), (16384, 0.0)]
    sizes += [(16384 * 128, hot) for hot in (0.0, 0.5, 1.0)] + [(32768 * 128, 0.0)]
    for tokens, hot in sizes:
        num_bytes = 2 * 4 * tokens * TOP_K
        num_inputs = min(64, num_rotated(num_bytes))
        ids = [make_ids(tokens, TOP_K, EXPERTS, hot, seed).to(DEVICE) for seed in range(num_inputs)]

        def ours(variant: str, recorder: Any = None, ids: list[torch.Tensor] = ids) -> NumberedCall:
            return lambda i: plan(ids[i], EXPERTS, BLOCK, variant=variant, recorder=recorder)

        calls = {name: ours(name) for name in ("dcp", "chained")}
        if tokens < 100_000:
            calls["single_block"] = ours("single_block")
        calls["torch"] = lambda i, ids=ids: moe_align_sort.reference(ids[i], EXPERTS, BLOCK)

        def errors(calls: dict[str, NumberedCall] = calls) -> dict[str, float]:
            wanted = calls["torch"](0)
            return {
                name: float(sum(int((a != b).sum()) for a, b in zip(call(0), wanted, strict=True)))
                for name, call in calls.items()
                if name != "torch"
            }

        shape = f"{tokens} x {TOP_K} of {EXPERTS}, {hot:.0%} on one expert"
        yield Case(
            "moe_align_sort",
            shape,
            num_bytes,
            num_inputs,
            calls,
            lambda r: ours("chained", r),
            errors,
        )


def rms_cases() -> Iterator[Case]:
    """Rows of 16384 fp16."""
    plan = rms_norm_fp8.Plan(DEVICE)
    compiled = torch.compile(rms_norm_fp8.reference, dynamic=False)
    for rows in ROWS:
        num_bytes = rows * WIDTH * 7 + WIDTH * 2
        count = num_rotated(num_bytes)
        inputs = [
            (_halves(rows, WIDTH), _halves(rows, WIDTH), _halves(WIDTH)) for _ in range(count)
        ]

        def ours(variant: str, recorder: Any = None, inputs: list[Any] = inputs) -> NumberedCall:
            return lambda i: plan(*inputs[i], SCALE, variant=variant, recorder=recorder)

        calls = {name: ours(name) for name in ("pointwise", "vectors", "shared", "tuned")}
        for name, reference in (("torch", rms_norm_fp8.reference), ("torch.compile", compiled)):
            calls[name] = lambda i, f=reference, x=inputs: f(*x[i], SCALE, plan.fp8)
        yield Case(
            "rms_norm_fp8", f"{rows} x {WIDTH}", num_bytes, count, calls,
            lambda r: ours("tuned", r), lambda calls=calls: _far_from_torch(calls, lambda out: out[0]),
        )  # fmt: skip


def swiglu_cases() -> Iterator[Case]:
    """Rows of 16384 fp16: 8192 gate and 8192 up."""
    plan = swiglu_fp8.Plan(DEVICE)
    compiled = torch.compile(swiglu_fp8.reference, dynamic=False)
    for rows in ROWS:
        num_bytes = rows * WIDTH * 5 // 2
        count = num_rotated(num_bytes)
        inputs = [_halves(rows, WIDTH) for _ in range(count)]

        def ours(variant: str, recorder: Any = None, inputs: list[Any] = inputs) -> NumberedCall:
            return lambda i: plan(inputs[i], SCALE, variant=variant, recorder=recorder)

        calls = {name: ours(name) for name in ("pointwise", "vectors", "packed", "tuned")}
        for name, reference in (("torch", swiglu_fp8.reference), ("torch.compile", compiled)):
            calls[name] = lambda i, f=reference, x=inputs: f(x[i], SCALE, plan.fp8)
        yield Case(
            "swiglu_fp8", f"{rows} x {WIDTH}", num_bytes, count, calls,
            lambda r: ours("tuned", r), lambda calls=calls: _far_from_torch(calls, lambda out: out),
        )  # fmt: skip


def gemm_cases() -> Iterator[Case]:
    """The three shapes of the write-up, for 1 to 32 tokens."""
    plan = skinny_gemm.Plan(DEVICE)
    one = torch.ones((), device=DEVICE)
    for rows, depth in GEMM_SHAPES:
        count = max(3, num_rotated(rows * depth))
        weights = [_fp8(rows, depth, plan.fp8) for _ in range(count)]
        for tokens in GEMM_TOKENS:
            x = _fp8(tokens, depth, plan.fp8)

            def ours(
                variant: str, recorder: Any = None, x: torch.Tensor = x, w: list[Any] = weights
            ) -> NumberedCall:
                return lambda i: plan(x, w[i], variant=variant, recorder=recorder)

            names = ("tiled", "split_k", "specialised", "tuned", "direct", "ring", "groups")
            calls = {name: ours(name) for name in names}
            calls["torch._scaled_mm"] = lambda i, x=x, w=weights: torch._scaled_mm(
                x, w[i].t(), one, one, out_dtype=torch.float16, use_fast_accum=True
            )

            def errors(calls: Any = calls, x: Any = x, w: Any = weights) -> dict[str, float]:
                wanted = x.double() @ w[0].double().t()
                size = x.double().abs() @ w[0].double().abs().t()
                return {
                    name: float(((call(0).double() - wanted).abs() / size).max())
                    for name, call in calls.items()
                }

            num_bytes = rows * depth + tokens * (depth + 2 * rows)
            shape = f"{tokens} x {rows} x {depth}"
            yield Case(
                "skinny_gemm", shape, num_bytes, count, calls, lambda r: ours("groups", r), errors
            )


CASES = {
    "moe_align_sort": moe_cases,
    "rms_norm_fp8": rms_cases,
    "swiglu_fp8": swiglu_cases,
    "skinny_gemm": gemm_cases,
}


def _halves(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=torch.float16)


def _fp8(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(rows, columns, device=DEVICE, dtype=torch.float16).to(dtype)


def _far_from_torch(
    calls: dict[str, NumberedCall], fp8_of: Callable[[Any], torch.Tensor]
) -> dict[str, float]:
    """Elements that are more than one fp8 step from torch's."""
    from instrumented_kernels.fp8 import count_far

    wanted = fp8_of(calls["torch"](0))
    return {name: float(count_far(fp8_of(call(0)), wanted)) for name, call in calls.items()}
