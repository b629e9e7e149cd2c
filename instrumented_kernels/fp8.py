"""The fp8 type of a build: OCP e4m3fn, or e4m3fnuz if the matrix units need it."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING

from instrumented_kernels.tensors import is_symbolic
from kprof.devices.targets import Target

if TYPE_CHECKING:
    import torch

    from kprof.devices.build import BuildOptions

_FNUZ_ARCHS = ("gfx940", "gfx941", "gfx942")


def fp8_dtype(options: BuildOptions) -> torch.dtype:
    """torch.float8_e4m3fn or torch.float8_e4m3fnuz; on the CPU target as -DKPROF_FP8_FNUZ says."""
    import torch

    is_fnuz = (
        ("KPROF_FP8_FNUZ", "1") in options.defines
        if options.target is Target.CPU
        else any(arch.startswith(_FNUZ_ARCHS) for arch in options.archs)
    )
    return torch.float8_e4m3fnuz if is_fnuz else torch.float8_e4m3fn


def fp8_dtype_of(device: torch.device) -> torch.dtype:
    """The same for a device of this process; of "meta", which is none, that of its GPU or CPU."""
    import torch

    from instrumented_kernels.kernel_library import build_options

    name = str(device)
    if device.type == "meta":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return fp8_dtype(build_options(name))


def fp32_of(name: str, number: float) -> float:
    """The number as kernels get it. Raise TypeError for what is no number."""
    try:
        return ctypes.c_float(number).value
    except OverflowError:
        return math.inf
    except TypeError:
        raise TypeError(f"{name} is {number!r}; give a number") from None


def check_scale(scale: float) -> None:
    """Raise TypeError or ValueError for a scale that makes all values zero or NaN.

    Kernels take it as fp32. While torch compiles it may have no value yet.
    """
    if is_symbolic(scale):
        return
    as_fp32 = fp32_of("the fp8 scale", scale)
    if not math.isfinite(as_fp32) or as_fp32 == 0:
        raise ValueError(
            f"the fp8 scale is {scale}; give a number that fp32 holds, finite and other than 0"
        )


def count_far(got: torch.Tensor, wanted: torch.Tensor) -> int:
    """The number of elements that differ from torch's by more than one fp8 step, NaNs aside."""
    import torch

    def ordinal(values: torch.Tensor) -> torch.Tensor:
        code = values.view(torch.uint8).int()
        return torch.where(code >= 128, 128 - code, code)

    return int(((ordinal(got) - ordinal(wanted)).abs() > 1).sum())
