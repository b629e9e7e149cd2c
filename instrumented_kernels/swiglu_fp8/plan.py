"""How a call of swiglu_fp8 becomes a launch, and the same in torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from instrumented_kernels.fp8 import VECTOR_LENGTH, RowsKind, RowsPlan, check_rows, check_scale
from instrumented_kernels.kernel_library import KernelSource
from instrumented_kernels.local_plan import PreparedCall
from instrumented_kernels.tensors import check_inputs, check_tensor, check_variant
from kprof.devices.on_use import torch
from kprof.recording.rank.null_recorder import AnyRecorder

VARIANTS: Final = ("pointwise", "vectors", "packed", "tuned")
_THREADS: Final = 256
# Threads of `tuned`, by the number of rows from which on. Fewer blocks have fewer headers to write
# when they are recorded.
_THREADS_TUNED: Final = ((256, 256), (0, 128))
_CPU_THREADS: Final = 64


class Plan(RowsPlan):
    """Calls of swiglu_fp8 on one device; see LocalPlan. `fp8` is the dtype that it writes."""

    source = KernelSource(Path(__file__).parent, tracks_per_block=1)

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
        check_inputs(x=x)
        check(x, scale, self.device)
        check_variant(variant, VARIANTS)
        result = allocate(x, self.fp8) if out is None else out
        check_tensor("out", result, self.fp8, (x.shape[0], x.shape[1] // 2), self.device)
        self._run_rows(variant, {"x": x, "y": result}, recorder, scale=scale)
        return result

    def _prepare_kind(self, kind: RowsKind) -> PreparedCall:
        num_vectors = -(-kind.row_length // VECTOR_LENGTH)
        # `tuned` is for whole vectors only.
        variant = "packed" if kind.variant == "tuned" and not kind.is_whole else kind.variant
        threads = _THREADS
        if variant == "tuned":
            threads = next(tuned for limit, tuned in _THREADS_TUNED if kind.num_rows >= limit)
        threads = _CPU_THREADS if self.is_on_cpu else threads
        blocks_per_row = max(1, -(-num_vectors // threads))
        return self._prepare_rows(
            kind,
            variant,
            kind.num_rows * blocks_per_row,
            threads // self._library.warp_width,
            blocks_per_row=blocks_per_row,
            reciprocal=(2**32 - 1) // blocks_per_row,
        )


def check(x: torch.Tensor, scale: float, device: str) -> None:
    """Raise TypeError or ValueError for invalid arguments."""
    check_rows(x, "2 d", device, multiple=2)
    check_scale(scale)


def allocate(x: torch.Tensor, fp8: torch.dtype) -> torch.Tensor:
    """Allocate the output."""
    return x.new_empty((x.shape[0], x.shape[1] // 2), dtype=fp8)


def reference(x: torch.Tensor, scale: float, fp8: torch.dtype) -> torch.Tensor:
    """The baseline, also for torch.compile: fp8(scale * silu(gate) * up), computed in fp32."""
    import torch  # itself, as torch.compile looks into this

    gate, up = x.float().chunk(2, dim=1)
    largest = torch.finfo(fp8).max
    return (scale * torch.nn.functional.silu(gate) * up).clamp(-largest, largest).to(fp8)
