"""Checks a kernel's tensors before anything is launched."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from numbers import Integral

from kprof.devices.on_use import torch


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    device: str,
) -> None:
    """Raise TypeError or ValueError with one sentence for a tensor that the plan cannot use."""
    if (
        tensor.dtype is dtype
        and tensor.shape == shape
        and _is_on(tensor, device)
        and tensor.is_contiguous()
    ):
        return
    if tensor.dtype != dtype:
        raise TypeError(f"{name} must be {dtype}, got {tensor.dtype}")
    if str(tensor.layout) != "torch.strided":
        raise TypeError(f"{name} is sparse ({tensor.layout}); call .to_dense()")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(tensor.shape)}")
    if not _is_on(tensor, device):
        raise ValueError(f"{name} is on {tensor.device}, the plan runs on {device}")
    raise ValueError(f"{name} must be contiguous; call .contiguous()")


def addresses_of(**tensors: torch.Tensor) -> dict[str, int]:
    """Of tensors that are fields of a call's arguments."""
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


def is_symbolic(number: object) -> bool:
    """Whether torch compiles for any value of the number, which the call itself will check."""
    return type(number).__name__ in ("SymInt", "SymFloat")


def lesser(number: int, other: int) -> int:
    """The smaller one, also of numbers that have no value yet while torch compiles."""
    if type(number) is int and type(other) is int:
        return min(number, other)
    return torch.sym_min(number, other)  # type: ignore[no-untyped-call]


def check_whole(name: str, number: object) -> None:
    """Raise TypeError for a number that is not whole."""
    is_whole = isinstance(number, Integral) or is_symbolic(number)
    if not is_whole or isinstance(number, bool):
        raise TypeError(f"{name} is {number!r}; give a whole number")


def check_variant(variant: str, variants: Iterable[str]) -> None:
    """Raise ValueError for a variant that a kernel does not have."""
    if variant not in variants:
        raise ValueError(f"variant {variant!r} is not known; choose one of {', '.join(variants)}")


def check_are_tensors(**tensors: object) -> None:
    """Raise TypeError for arguments that are no tensors."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")


def check_inputs(**tensors: torch.Tensor) -> None:
    """Raise TypeError for arguments that are no tensors, ValueError for a tensor whose gradient
    torch would expect the kernel to pass on."""
    check_are_tensors(**tensors)
    if not torch.is_grad_enabled():
        return
    for name, tensor in tensors.items():
        if tensor.requires_grad:
            raise ValueError(
                f"{name} requires a gradient, and this kernel computes none; "
                f"call it under torch.no_grad(), or give {name}.detach()"
            )


def _is_on(tensor: torch.Tensor, device: str) -> bool:
    """Whether a tensor is on "cpu" or "meta", or on a GPU such as "cuda:1"; "cuda" means any."""
    if device == "cpu":
        return tensor.is_cpu
    if device == "meta":
        return tensor.is_meta
    return tensor.is_cuda and _number_of(device) in (None, tensor.get_device())


@cache
def _number_of(device: str) -> int | None:
    number = device.partition(":")[2]
    return int(number) if number else None
