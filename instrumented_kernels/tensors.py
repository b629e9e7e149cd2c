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
    device: str,
) -> None:
    """Raise TypeError or ValueError with one sentence where `tensor` is not what the plan was made for."""
    if tensor.dtype != dtype:
        raise TypeError(f"{name} must be {dtype}, got {tensor.dtype}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(tensor.shape)}")
    if not _is_on(tensor.device, device):
        raise ValueError(f"{name} is on {tensor.device}, the plan runs on {device}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous; call .contiguous()")


def _is_on(found: torch.device, wanted: str) -> bool:
    """Whether a tensor's device is `wanted`, which may leave out the number: "cuda"."""
    import torch

    device = torch.device(wanted)
    return found.type == device.type and device.index in (None, found.index)
