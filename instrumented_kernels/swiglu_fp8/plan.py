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
_THREADS_TUNED: Final = 128
_CPU_THREADS: Final = 64
# The vectors per thread of `tuned`, and the number of vectors from which each is used, descending.
# On an H200 one is the fastest for any number of rows; benchmarks/single_gpu tries 2 and 4, too.
_HELD: Final = ((0, 1),)


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
        threads = _CPU_THREADS if self.is_on_cpu else _THREADS
        name, per_thread = kind.variant, 1
        if kind.variant == "tuned":
            threads = min(threads, _THREADS_TUNED)
            per_thread = _held(kind.num_rows * num_vectors)
            name = f"tuned{per_thread}"
        blocks_per_row = max(1, -(-num_vectors // (threads * per_thread)))
        arguments = self._arguments(
            Shape(kind.num_rows, kind.row_length),
            blocks_per_row=blocks_per_row,
            is_whole=int(kind.is_whole),
        )
        if kind.num_rows * kind.row_length == 0:
            return self._prepare(arguments, [])
        variant_idx = self._library.variants.index(f"{name}/{ELEMENT_TYPES[str(kind.dtype)]}")
        grid = self._library.independent_grid(
            kind.num_rows * blocks_per_row, threads // self._library.warp_width
        )
        return self._prepare(arguments, [Launch(variant_idx, 0, arguments, grid)])


def _held(num_vectors: int) -> int:
    return next(held for limit, held in _HELD if num_vectors >= limit)


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
