"""How a call of swiglu_fp8 becomes a launch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from instrumented_kernels.fp8 import check_scale
from instrumented_kernels.fp8_plan import VECTOR_LENGTH, Fp8Plan, RowsKind, are_whole_vectors
from instrumented_kernels.kernel_library import KernelSource, Launch
from instrumented_kernels.local_plan import ELEMENT_TYPES, PreparedCall
from instrumented_kernels.swiglu_fp8.arguments import CallArguments, Shape
from instrumented_kernels.tensors import check_are_tensors, check_tensor, check_wants_no_gradient

if TYPE_CHECKING:
    import torch

    from kprof.recording.null_recorder import AnyRecorder

VARIANTS: Final = ("pointwise", "vectors", "packed", "tuned")
_THREADS: Final = 256
# Threads of `tuned`, by the number of rows from which on. Fewer blocks have fewer headers to write
# when they are recorded.
_THREADS_TUNED: Final = ((256, 256), (0, 128))
_CPU_THREADS: Final = 64


class Plan(Fp8Plan):
    """Calls of swiglu_fp8 on one device; see LocalPlan. `fp8` is the dtype that it writes."""

    source = KernelSource(Path(__file__).parent, Shape, CallArguments, tracks_per_block=1)

    def __call__(
        self,
        x: torch.Tensor,
        scale: float,
        *,
        variant: str = "tuned",
        out: torch.Tensor | None = None,
        recorder: AnyRecorder | None = None,
    ) -> torch.Tensor:
        """fp8(scale * silu(gate) * up), computed in fp32, [n, d].

        `x`: fp16 or bf16 [n, 2 d] = gate | up, contiguous. Values that are too large for fp8
        saturate. Raises TypeError or ValueError before any launch.
        """
        check_are_tensors(x=x)
        check_wants_no_gradient(x=x)
        check(x, scale, variant, self.device)
        result = allocate(x, self.fp8) if out is None else out
        check_tensor("out", result, self.fp8, (x.shape[0], x.shape[1] // 2), self.device)
        source, target = x.data_ptr(), result.data_ptr()
        num_rows, row_length = result.shape
        is_whole = are_whole_vectors(row_length, source, target)
        kind = RowsKind(num_rows, row_length, x.dtype, variant, is_whole)
        prepared = self._kept(kind, lambda: self._prepare_kind(kind))
        self._run(prepared, recorder, scale=scale, x=source, y=target)
        return result

    def _prepare_kind(self, kind: RowsKind) -> PreparedCall:
        num_vectors = -(-kind.row_length // VECTOR_LENGTH)
        # `tuned` is for whole vectors only.
        variant = "packed" if kind.variant == "tuned" and not kind.is_whole else kind.variant
        threads = _threads_tuned(kind.num_rows) if variant == "tuned" else _THREADS
        threads = _CPU_THREADS if self.is_on_cpu else threads
        blocks_per_row = max(1, -(-num_vectors // threads))
        arguments = self._arguments(
            Shape(kind.num_rows, kind.row_length),
            blocks_per_row=blocks_per_row,
            reciprocal=(2**32 - 1) // blocks_per_row,
            is_whole=int(kind.is_whole),
        )
        if kind.num_rows * kind.row_length == 0:
            return self._prepare(arguments, [])
        variant_idx = self._library.variants.index(f"{variant}/{ELEMENT_TYPES[str(kind.dtype)]}")
        grid = self._library.independent_grid(
            kind.num_rows * blocks_per_row, threads // self._library.warp_width
        )
        return self._prepare(arguments, [Launch(variant_idx, 0, arguments, grid)])


def _threads_tuned(num_rows: int) -> int:
    return next(threads for limit, threads in _THREADS_TUNED if num_rows >= limit)


def check(x: torch.Tensor, scale: float, variant: str, device: str) -> None:
    """Raise TypeError or ValueError for invalid arguments."""
    if str(x.dtype) not in ELEMENT_TYPES:
        raise TypeError(f"x must be fp16 or bf16, got {x.dtype}")
    if x.dim() != 2 or x.shape[1] % 2:
        raise ValueError(f"x must have shape [n, 2 d], got {list(x.shape)}")
    check_tensor("x", x, x.dtype, tuple(x.shape), device)
    check_scale(scale)
    if variant not in VARIANTS:
        raise ValueError(f"variant {variant!r} is not known; choose one of {', '.join(VARIANTS)}")


def allocate(x: torch.Tensor, fp8: torch.dtype) -> torch.Tensor:
    """Allocate the output."""
    return x.new_empty((x.shape[0], x.shape[1] // 2), dtype=fp8)
