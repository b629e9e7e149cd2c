"""Other grids, roles and vectors per thread than the plans choose: what `tuned` variants are tuned with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from benchmarks.single_gpu.contenders import (
    BLOCK,
    DEVICE,
    EXPERTS,
    GEMM_SHAPES,
    SCALE,
    TOP_K,
    WIDTH,
    _fp8,
    _halves,
)
from benchmarks.single_gpu.timing import NumberedCall, num_rotated, time_us
from instrumented_kernels import moe_align_sort, rms_norm_fp8, skinny_gemm, swiglu_fp8
from instrumented_kernels.moe_align_sort.__main__ import make_ids
from instrumented_kernels.rms_norm_fp8 import plan as rms_plans
from instrumented_kernels.skinny_gemm import Roles
from instrumented_kernels.skinny_gemm.plan import SLOTS
from instrumented_kernels.swiglu_fp8 import plan as swiglu_plans

Row = dict[str, Any]


def moe_sweep() -> Iterator[Row]:
    """Blocks of the grid."""
    plan = moe_align_sort.Plan(DEVICE)
    for tokens in (8192, 16384 * 128):
        count = min(16, num_rotated(8 * tokens * TOP_K))
        ids = [make_ids(tokens, TOP_K, EXPERTS, 0.0, seed).to(DEVICE) for seed in range(count)]
        for blocks in (16, 32, 64, 132, 264) if tokens < 100_000 else (132, 264, 528, 1056):
            call: NumberedCall = lambda i, b=blocks, ids=ids: plan(  # noqa: E731
                ids[i], EXPERTS, BLOCK, variant="chained", num_blocks=b
            )
            yield _row("moe_align_sort", str(tokens), f"{blocks} blocks", call, count)


def rms_sweep() -> Iterator[Row]:
    """The kernels for rows of whole vectors, and for any rows."""
    for rows in (64, 132, 256, 512, 1024):
        count = num_rotated(rows * WIDTH * 7)
        inputs = [
            (_halves(rows, WIDTH), _halves(rows, WIDTH), _halves(WIDTH)) for _ in range(count)
        ]
        for name, least in (("whole rows", 128), ("any rows", 1 << 30)):
            with patch.object(rms_plans, "_LEAST_WHOLE_THREADS", least):
                plan = rms_norm_fp8.Plan(DEVICE)
                call: NumberedCall = lambda i, p=plan, x=inputs: p(*x[i], SCALE)  # noqa: E731
                yield _row("rms_norm_fp8", str(rows), name, call, count)


def swiglu_sweep() -> Iterator[Row]:
    """Threads per block."""
    for rows in (1, 16, 64, 256, 512, 2048):
        count = num_rotated(rows * WIDTH * 5 // 2)
        inputs = [_halves(rows, WIDTH) for _ in range(count)]
        for threads in (64, 128, 256):
            with patch.object(swiglu_plans, "_THREADS_TUNED", ((0, threads),)):
                plan = swiglu_fp8.Plan(DEVICE)
                call: NumberedCall = lambda i, p=plan, x=inputs: p(x[i], SCALE)  # noqa: E731
                yield _row("swiglu_fp8", str(rows), f"{threads} threads", call, count)


def gemm_sweep() -> Iterator[Row]:
    """Warps per block of `direct`; producers, consumers and slots of `tuned`."""
    plan = skinny_gemm.Plan(DEVICE)
    for rows, depth in GEMM_SHAPES:
        count = max(3, num_rotated(rows * depth))
        weights = [_fp8(rows, depth, plan.fp8) for _ in range(count)]
        for tokens in (1, 16, 32):
            x = _fp8(tokens, depth, plan.fp8)
            shape = f"{tokens} x {rows} x {depth}"
            for warps in (4, 8, 16):
                with patch.object(skinny_gemm.Plan, "_geometry", _geometry_of(warps)):
                    other = skinny_gemm.Plan(DEVICE)
                    call: NumberedCall = lambda i, p=other, x=x, w=weights: p(  # noqa: E731
                        x, w[i], variant="direct"
                    )
                    yield _row("skinny_gemm", shape, f"direct, {warps} warps", call, count)
            most = SLOTS[max(8, tokens)]
            with_tokens = [(2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (4, 4)]
            for roles in [
                *(Roles(4, consumers, most, loading) for consumers, loading in with_tokens),
                Roles(6, 4, most, 2),
                Roles(10, 2, most),
            ]:
                tuned: NumberedCall = lambda i, x=x, w=weights, r=roles: plan(  # noqa: E731
                    x, w[i], variant="tuned", roles=r
                )
                yield _row("skinny_gemm", shape, f"tuned, {tuple(roles)}", tuned, count)
            # What a report of the first one promises for twice the producers, and twice the places.
            for roles in (Roles(2, 1, 2), Roles(4, 1, 2), Roles(2, 1, 4), Roles(2, 1, 2, 2)):
                if roles.num_slots > most:
                    continue
                story: NumberedCall = lambda i, x=x, w=weights, r=roles: plan(  # noqa: E731
                    x, w[i], variant="specialised", roles=r
                )
                yield _row("skinny_gemm", shape, f"specialised, {tuple(roles)}", story, count)


def _geometry_of(warps: int) -> Any:
    return lambda *arguments: (arguments[-1], warps)


def _row(kernel: str, shape: str, what: str, call: NumberedCall, count: int) -> Row:
    timing = time_us(call, count)
    return {"kernel": kernel, "shape": shape, "sweep": {what: round(timing.us, 2)}}


SWEEPS = {
    "moe_align_sort": moe_sweep,
    "rms_norm_fp8": rms_sweep,
    "swiglu_fp8": swiglu_sweep,
    "skinny_gemm": gemm_sweep,
}
