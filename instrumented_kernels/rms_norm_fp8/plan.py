"""How a call of rms_norm_fp8 becomes a launch, and the same in torch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, NamedTuple

from instrumented_kernels.fp8 import (
    VECTOR_LENGTH,
    RowsKind,
    RowsPlan,
    check_rows,
    check_scale,
    fp32_of,
)
from instrumented_kernels.kernel_library import KernelSource
from instrumented_kernels.local_plan import PreparedCall
from instrumented_kernels.tensors import (
    check_inputs,
    check_tensor,
    check_variant,
    is_symbolic,
)
from kprof.devices.on_use import torch
from kprof.recording.rank.null_recorder import AnyRecorder

_SOURCE: Final = KernelSource(Path(__file__).parent, tracks_per_block=1)
KEPT_ELEMENTS: Final = _SOURCE.header.constants["kKeptElements"]
VARIANTS: Final = ("pointwise", "vectors", "shared", "tuned")
DEFAULT_EPSILON: Final = 1e-6
_MAX_THREADS: Final = 512
# The kernels of `tuned`, and the vectors per thread of each, in order of preference.
_FOR_FEW_ROWS: Final = (("few1", 1), ("few2", 2), ("few4", 4))
_FOR_MANY_ROWS: Final = (("many4", 4),)
# The vectors per thread of the kernels for rows that are whole vectors of all threads of a block.
_WHOLE_VECTORS: Final = 4
_LEAST_WHOLE_THREADS: Final = 128
_LADDER_THREADS: Final = 512
# With this many rows every processor has several.
_MANY_ROWS: Final = 256
_CPU_WARPS: Final = 2
_CPU_PROCESSORS: Final = 2


class Normalised(NamedTuple):
    """The result of a call: `y` fp8 [n, d], and `sum` = x + residual in the type of x."""

    y: torch.Tensor
    sum: torch.Tensor


class Plan(RowsPlan):
    """Calls of rms_norm_fp8 on one device; see LocalPlan. `fp8` is the dtype that it writes."""

    source = _SOURCE

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        scale: float,
        *,
        epsilon: float = DEFAULT_EPSILON,
        variant: str = "tuned",
        out: Normalised | None = None,
        recorder: AnyRecorder | None = None,
    ) -> Normalised:
        """sum = x + residual; y = fp8(scale * weight * sum / sqrt(mean(sum^2) + epsilon)), computed
        in fp32.

        `x`, `residual`: fp16 or bf16 [n, d], `weight` the same type [d], all contiguous. `out.sum`
        may be `residual` or `x` itself. Values that are too large for fp8 saturate.

        Raises TypeError or ValueError before any launch.
        """
        check_inputs(x=x, residual=residual, weight=weight)
        check(x, residual, weight, scale, epsilon, self.device)
        check_variant(variant, VARIANTS)
        result = allocate(x, self.fp8) if out is None else out
        check_tensor("out.y", result.y, self.fp8, tuple(x.shape), self.device)
        check_tensor("out.sum", result.sum, x.dtype, tuple(x.shape), self.device)
        tensors = {"x": x, "residual": residual, "weight": weight, "sum": result.sum, "y": result.y}
        self._run_rows(variant, tensors, recorder, scale=scale, epsilon=epsilon)
        return result

    def _prepare_kind(self, kind: RowsKind) -> PreparedCall:
        name, team_warps, num_teams = self._geometry(kind)
        num_blocks, num_warps = -(-kind.num_rows // num_teams), num_teams * team_warps
        return self._prepare_rows(kind, name, num_blocks, num_warps, team_warps=team_warps)

    def _geometry(self, kind: RowsKind) -> tuple[str, int, int]:
        """The kernel, the warps that share a row, and the rows of a block."""
        width = self._library.warp_width
        if kind.variant == "tuned":
            found = self._tuned_geometry(kind, width)
            if found is not None:
                return found
        is_kept = kind.variant == "shared" and kind.row_length <= KEPT_ELEMENTS
        name = kind.variant if kind.variant == "pointwise" else "shared" if is_kept else "vectors"
        return name, _CPU_WARPS if self.is_on_cpu else _LADDER_THREADS // width, 1

    def _tuned_geometry(self, kind: RowsKind, width: int) -> tuple[str, int, int] | None:
        """None if a row does not fit a block's registers, so that it must be read twice."""
        num_vectors = -(-kind.row_length // VECTOR_LENGTH)
        whole = self._whole_geometry(kind, num_vectors, width)
        if whole is not None:
            return whole
        block_threads = _CPU_WARPS * width if self.is_on_cpu else 256
        is_many = kind.num_rows >= _MANY_ROWS and kind.is_whole
        kernels = _FOR_MANY_ROWS if is_many else _FOR_FEW_ROWS
        for name, num_held in kernels:
            team_warps = max(1, -(-num_vectors // (num_held * width)))
            limit = _CPU_WARPS * width if self.is_on_cpu else _MAX_THREADS
            if team_warps * width <= limit:
                return name, team_warps, max(1, block_threads // (team_warps * width))
        return None

    def _whole_geometry(
        self, kind: RowsKind, num_vectors: int, width: int
    ) -> tuple[str, int, int] | None:
        """None if a row is not the same number of vectors for all threads of a block."""
        num_warps, rest = divmod(num_vectors, _WHOLE_VECTORS * width)
        threads = num_warps * width
        if not kind.is_whole or rest or not _LEAST_WHOLE_THREADS <= threads <= _MAX_THREADS:
            return None
        # Where every processor has one row at most, its block may have all registers.
        processors = self._library.num_processors or _CPU_PROCESSORS
        return f"whole{1 if kind.num_rows <= processors else 2}", num_warps, 1


def check(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: float,
    epsilon: float,
    device: str,
) -> None:
    """Raise TypeError or ValueError for invalid arguments."""
    check_rows(x, "d", device)
    check_tensor("residual", residual, x.dtype, tuple(x.shape), device)
    check_tensor("weight", weight, x.dtype, (x.shape[1],), device)
    check_scale(scale)
    if not is_symbolic(epsilon):
        check_epsilon(epsilon)


def check_epsilon(epsilon: float) -> None:
    """Raise TypeError or ValueError for an epsilon that makes values zero or NaN.

    Kernels take it as fp32.
    """
    as_fp32 = fp32_of("epsilon", epsilon)
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon is {epsilon}; give 0 or more, and no infinity")
    if math.isinf(as_fp32) or (as_fp32 == 0) != (epsilon == 0):
        raise ValueError(f"epsilon is {epsilon}; give a number that fp32 holds, or 0")


def allocate(x: torch.Tensor, fp8: torch.dtype) -> Normalised:
    """Allocate the outputs."""
    return Normalised(torch.empty_like(x, dtype=fp8), torch.empty_like(x))


def reference(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: float,
    fp8: torch.dtype,
    epsilon: float = DEFAULT_EPSILON,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The baseline, also for torch.compile: y and sum, computed in fp32 as in models."""
    import torch  # itself, as torch.compile looks into this

    total = x + residual
    wide = total.float()
    factor = torch.rsqrt(wide.square().mean(dim=1, keepdim=True) + epsilon) * scale
    largest = torch.finfo(fp8).max
    return (wide * factor * weight.float()).clamp(-largest, largest).to(fp8), total
