"""The fp8 type of a build (OCP e4m3fn, or e4m3fnuz if the matrix units need it), and the base of
plans for kernels that write it, some of them row by row."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final, NamedTuple

from instrumented_kernels.kernel_library import build_options
from instrumented_kernels.local_plan import LocalPlan, PreparedCall
from instrumented_kernels.tensors import addresses_of, check_tensor, is_symbolic
from kprof.devices.build import BuildOptions
from kprof.devices.on_use import torch
from kprof.devices.targets import Target
from kprof.recording.rank.null_recorder import AnyRecorder

_FNUZ_ARCHS = ("gfx940", "gfx941", "gfx942")
_ELEMENT_TYPES: Final = {"torch.float16": "fp16", "torch.bfloat16": "bf16"}
VECTOR_BYTES: Final = 16
# 16-bit elements per vector.
VECTOR_LENGTH: Final = 8


def fp8_dtype(options: BuildOptions) -> torch.dtype:
    """torch.float8_e4m3fn or torch.float8_e4m3fnuz; on the CPU target as -DKPROF_FP8_FNUZ says."""
    is_fnuz = (
        ("KPROF_FP8_FNUZ", "1") in options.defines
        if options.target is Target.CPU
        else any(arch.startswith(_FNUZ_ARCHS) for arch in options.archs)
    )
    return torch.float8_e4m3fnuz if is_fnuz else torch.float8_e4m3fn


def fp8_dtype_of(device: torch.device) -> torch.dtype:
    """The same for a device of this process; of "meta", which is none, that of its GPU or CPU."""
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

    def ordinal(values: torch.Tensor) -> torch.Tensor:
        code = values.view(torch.uint8).int()
        return torch.where(code >= 128, 128 - code, code)

    return int(((ordinal(got) - ordinal(wanted)).abs() > 1).sum())


class Fp8Plan(LocalPlan):
    """A LocalPlan whose kernel writes fp8."""

    @property
    def fp8(self) -> torch.dtype:
        """The device's fp8 type."""
        return fp8_dtype(self.options)


class RowsKind(NamedTuple):
    """The kind of a call, for kernels that work row by row."""

    num_rows: int
    row_length: int
    dtype: torch.dtype
    variant: str
    is_whole: bool


class RowsPlan(Fp8Plan):
    """An Fp8Plan whose kernel turns rows of 16-bit elements, `x`, into rows of fp8, `y` [n, d]."""

    def _run_rows(
        self,
        variant: str,
        tensors: dict[str, torch.Tensor],
        recorder: AnyRecorder | None,
        **values: Any,
    ) -> None:
        """Run a call. `tensors` and `values` are the fields of its arguments."""
        addresses = addresses_of(**tensors)
        num_rows, row_length = tensors["y"].shape
        is_whole = are_whole_vectors(row_length, VECTOR_LENGTH, addresses)
        kind = RowsKind(num_rows, row_length, tensors["x"].dtype, variant, is_whole)
        self._run(kind, recorder, **addresses, **values)

    def _prepare_rows(
        self, kind: RowsKind, kernel: str, num_blocks: int, num_warps: int, **own: int
    ) -> PreparedCall:
        """`own` are the fields of the arguments that only this kernel has."""
        shape = self.source.shape(kind.num_rows, kind.row_length)
        arguments = self._filled(shape, is_whole=int(kind.is_whole), **own)
        variant_idx = self._library.variants.index(f"{kernel}/{_ELEMENT_TYPES[str(kind.dtype)]}")
        return self._prepare_launch(
            arguments, variant_idx, num_blocks if kind.row_length else 0, num_warps
        )


def check_rows(x: torch.Tensor, columns: str, device: str, multiple: int = 1) -> None:
    """Raise TypeError or ValueError unless `x` is [n, `columns`] of 16-bit floats on the device.

    The number of columns is a multiple of `multiple`.
    """
    if str(x.dtype) not in _ELEMENT_TYPES:
        raise TypeError(f"x must be fp16 or bf16, got {x.dtype}")
    if x.dim() != 2 or x.shape[1] % multiple:
        raise ValueError(f"x must have shape [n, {columns}], got {list(x.shape)}")
    check_tensor("x", x, x.dtype, tuple(x.shape), device)


def are_whole_vectors(row_length: int, multiple: int, addresses: dict[str, int]) -> bool:
    """Whether rows are a multiple of this length, at addresses of whole vectors."""
    return not row_length % multiple and not any(
        address % VECTOR_BYTES for address in addresses.values()
    )
