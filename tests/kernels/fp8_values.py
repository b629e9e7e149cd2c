"""Correctly rounded fp8, from float64."""

from __future__ import annotations

import torch
from widths import HAS_ALL_FP8

# An emulator without fnuz converts to e4m3fn and makes subnormals zero; the kernels saturate at 240.
_EMULATED = (2.0**-6, 240.0)


def nearest_fp8(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float64 values as fp8: to nearest, ties to even, saturated; NaN stays NaN."""
    codes = torch.arange(128, dtype=torch.uint8)
    magnitudes = codes.view(dtype).double()
    finite = magnitudes[~magnitudes.isnan()]
    between = (finite[1:] + finite[:-1]) / 2
    size = values.abs().nan_to_num(nan=0.0)
    code = torch.searchsorted(between, size, right=False)
    is_tie = size == between[code.clamp(max=len(between) - 1)]
    code = code + (is_tie & (code % 2 == 1)).long()
    rounded = torch.copysign(finite[code], values)
    return torch.where(values.isnan(), values, rounded).to(torch.float32).to(dtype)


def steps_apart(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """How many fp8 values lie between two. NaN and NaN are equal, NaN and a number are 1000 apart."""
    gap = (_ordinal(got) - _ordinal(wanted)).abs()
    is_nan, is_wanted_nan = got.float().isnan(), wanted.float().isnan()
    gap = torch.where(is_nan & is_wanted_nan, 0, gap)
    return torch.where(is_nan ^ is_wanted_nan, 1000, gap)


def _ordinal(values: torch.Tensor) -> torch.Tensor:
    code = values.view(torch.uint8).int()
    return torch.where(code >= 128, -(code - 128), code)


def assert_rounded(got: torch.Tensor, exact: torch.Tensor) -> None:
    """Equal to the rounded value in 99.9 % of the elements, and nowhere more than one step away."""
    gap = steps_apart(got, nearest_fp8(exact, got.dtype))
    if not HAS_ALL_FP8:
        gap = gap[(exact.abs() >= _EMULATED[0]) & (exact.abs() <= _EMULATED[1])]
    assert int(gap.max()) <= 1 if gap.numel() else True
    assert int((gap != 0).sum()) <= gap.numel() / 1000
