"""rms_norm_fp8 in torch: the baseline, also for torch.compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instrumented_kernels.rms_norm_fp8.plan import DEFAULT_EPSILON

if TYPE_CHECKING:
    import torch


def reference(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: float,
    fp8: torch.dtype,
    epsilon: float = DEFAULT_EPSILON,
) -> tuple[torch.Tensor, torch.Tensor]:
    """y and sum, computed in fp32 as in models."""
    import torch

    total = x + residual
    wide = total.float()
    factor = torch.rsqrt(wide.square().mean(dim=1, keepdim=True) + epsilon) * scale
    largest = torch.finfo(fp8).max
    return (wide * factor * weight.float()).clamp(-largest, largest).to(fp8), total
