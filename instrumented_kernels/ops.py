"""The kernels for one GPU as torch operators: torch.compile knows their shapes, CUDA graphs capture
them.

    from instrumented_kernels import ops
    sorted_ids, block_experts, num_padded = ops.moe_align_sort(topk_ids, 256, 64)

Under `kprof record` the calls are recorded. None has a gradient: a backward pass that reaches one
raises NotImplementedError. A compiled function may compute `num_experts` and `block_size`, as with
`.item()`; torch refuses a `scale` or `epsilon` that it computes, as for any operator that takes a
float. Importing this module imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from instrumented_kernels.fp8 import fp8_dtype_of
from instrumented_kernels.local_plan import plan_for
from instrumented_kernels.moe_align_sort import plan as moe
from instrumented_kernels.rms_norm_fp8 import plan as rms
from instrumented_kernels.skinny_gemm import plan as gemm
from instrumented_kernels.swiglu_fp8 import plan as swiglu
from instrumented_kernels.tensors import check_are_tensors
from kprof.recording.rank.null_recorder import AnyRecorder
from kprof.recording.rank.process import process_records, recorder

__all__ = ["moe_align_sort", "rms_norm_fp8", "skinny_gemm", "swiglu_fp8"]


def _recorder(tensor: torch.Tensor) -> AnyRecorder | None:
    return _recorder_of(str(tensor.device)) if process_records() else None


@cache
def _recorder_of(device: str) -> AnyRecorder:
    return recorder(device=device)


@torch.library.custom_op("kprof::moe_align_sort", mutates_args=())
def moe_align_sort(
    topk_ids: torch.Tensor, num_experts: int, block_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(token, k) ids sorted by expert, runs padded to blocks.

    See moe_align_sort.Plan and Sorted.
    """
    check_are_tensors(topk_ids=topk_ids)
    plan = plan_for(moe.Plan, topk_ids)
    return plan(topk_ids, num_experts, block_size, recorder=_recorder(topk_ids))


@moe_align_sort.register_fake
def _(
    topk_ids: torch.Tensor, num_experts: int, block_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    check_are_tensors(topk_ids=topk_ids)
    kind = moe.Problem(topk_ids.numel(), num_experts, block_size, moe.VARIANTS[-1], None)
    # What another operator computes has no value yet: the call checks it.
    if not free_unbacked_symbols((num_experts, block_size)):
        moe.check(topk_ids, kind, str(topk_ids.device))
    return moe.allocate(topk_ids, kind)


@torch.library.custom_op("kprof::rms_norm_fp8", mutates_args=())
def rms_norm_fp8(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: float,
    epsilon: float = rms.DEFAULT_EPSILON,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, x + residual): residual, RMS norm and fp8 in one pass; see rms_norm_fp8.Plan."""
    check_are_tensors(x=x)
    plan = plan_for(rms.Plan, x)
    return plan(x, residual, weight, scale, epsilon=epsilon, recorder=_recorder(x))


@torch.library.custom_op("kprof::swiglu_fp8", mutates_args=())
def swiglu_fp8(x: torch.Tensor, scale: float) -> torch.Tensor:
    """fp8(scale * silu(gate) * up) of rows that are gate | up; see swiglu_fp8.Plan."""
    check_are_tensors(x=x)
    return plan_for(swiglu.Plan, x)(x, scale, recorder=_recorder(x))


@torch.library.custom_op("kprof::skinny_gemm", mutates_args=())
def skinny_gemm(tokens: torch.Tensor, weights: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """scale * tokens x weights^T as fp16; see skinny_gemm.Plan."""
    check_are_tensors(tokens=tokens)
    return plan_for(gemm.Plan, tokens)(tokens, weights, scale, recorder=_recorder(tokens))


def _complete(operator: Any, name: str, outputs: Callable[..., Any]) -> None:
    """Tell torch the shapes of an operator's results, and that it has no gradient."""

    def backward(*_: Any) -> Any:
        raise NotImplementedError(
            f"kprof::{name} has no gradient; call it under torch.no_grad(), or detach its inputs"
        )

    operator.register_fake(outputs)
    operator.register_autograd(backward)


def _rms_norm_outputs(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: float,
    epsilon: float = rms.DEFAULT_EPSILON,
) -> rms.Normalised:
    check_are_tensors(x=x, residual=residual, weight=weight)
    rms.check(x, residual, weight, scale, epsilon, str(x.device))
    return rms.allocate(x, fp8_dtype_of(x.device))


def _swiglu_output(x: torch.Tensor, scale: float) -> torch.Tensor:
    check_are_tensors(x=x)
    swiglu.check(x, scale, str(x.device))
    return swiglu.allocate(x, fp8_dtype_of(x.device))


def _gemm_output(tokens: torch.Tensor, weights: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    check_are_tensors(tokens=tokens, weights=weights)
    gemm.check(tokens, weights, scale, fp8_dtype_of(tokens.device), str(tokens.device))
    return gemm.allocate(tokens, weights)


_complete(rms_norm_fp8, "rms_norm_fp8", _rms_norm_outputs)
_complete(swiglu_fp8, "swiglu_fp8", _swiglu_output)
_complete(skinny_gemm, "skinny_gemm", _gemm_output)
