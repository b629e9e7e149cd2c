"""The base of plans for kernels that write fp8, and of those that work row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from instrumented_kernels.fp8 import fp8_dtype
from instrumented_kernels.local_plan import LocalPlan, PreparedCall
from instrumented_kernels.tensors import addresses_of, check_tensor

if TYPE_CHECKING:
    import torch

    from kprof.recording.rank.null_recorder import AnyRecorder

_ELEMENT_TYPES: Final = {"torch.float16": "fp16", "torch.bfloat16": "bf16"}
VECTOR_BYTES: Final = 16
# 16-bit elements per vector.
VECTOR_LENGTH: Final = 8


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
