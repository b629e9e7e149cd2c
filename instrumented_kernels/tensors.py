"""What a kernel demands of a tensor, checked before anything is launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    device_type: str,
) -> None:
    """Raise TypeError or ValueError with one sentence where `tensor` is not what the plan was made for."""
    if tensor.dtype != dtype:
        raise TypeError(f"{name} must be {dtype}, got {tensor.dtype}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(tensor.shape)}")
    if tensor.device.type != device_type:
        raise ValueError(f"{name} is on {tensor.device}, the plan runs on {device_type}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous; call .contiguous()")
