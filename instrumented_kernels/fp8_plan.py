"""The base of plans for kernels that write fp8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from instrumented_kernels.fp8 import fp8_dtype
from instrumented_kernels.local_plan import LocalPlan

if TYPE_CHECKING:
    import torch

_VECTOR_BYTES: Final = 16
# 16-bit elements per vector.
VECTOR_LENGTH: Final = 8


class RowsKind(NamedTuple):
    """The kind of a call, for kernels that work row by row."""

    num_rows: int
    row_length: int
    dtype: torch.dtype
    variant: str
    is_whole: bool


class Fp8Plan(LocalPlan):
    """A LocalPlan whose kernel writes fp8."""

    @property
    def fp8(self) -> torch.dtype:
        """The device's fp8 type."""
        return fp8_dtype(self.options)


def are_whole_vectors(row_length: int, *addresses: int) -> bool:
    """Whether rows at these addresses consist of whole, aligned vectors."""
    return row_length % VECTOR_LENGTH == 0 and not any(
        address % _VECTOR_BYTES for address in addresses
    )
