"""How a call of moe_align_sort becomes launches, and the same in torch."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final, NamedTuple

from instrumented_kernels.kernel_library import KernelSource, Launch
from instrumented_kernels.local_plan import LocalPlan, PreparedCall
from instrumented_kernels.tensors import (
    addresses_of,
    check_are_tensors,
    check_tensor,
    check_variant,
    check_whole,
    lesser,
)
from kprof.devices.on_use import torch
from kprof.recording.rank.null_recorder import AnyRecorder

_SOURCE: Final = KernelSource(Path(__file__).parent, tracks_per_block=1)
MAX_EXPERTS: Final = _SOURCE.header.constants["kMaxExperts"]
FEW_EXPERTS: Final = _SOURCE.header.constants["kFewExperts"]
# An expert's count shares its word with two flags.
MAX_IDS: Final = (1 << 30) - 1
VARIANTS: Final = ("single_block", "dcp", "chained")
_BLOCK_IDS: Final = 4096  # for which there is a block, up to what fits the device
# With so few ids `chained` has smaller blocks and tiles: on an H200 8 % faster at 2^16, 4 % at
# 2^17.
_FEW_IDS: Final = 1 << 17
_FEW_BLOCK_IDS: Final = 2048
# With so many ids `chained` sorts larger tiles: 18 % faster on an H200 at 2^24, and slower where
# blocks have one tile.
_LARGE_IDS: Final = 1 << 22
_VECTOR_IDS: Final = 4  # that one instruction loads
# Each has counts of all experts.
_MAX_BLOCKS: Final = 1 << 16
_CPU_WARPS: Final = 2
_CPU_BLOCKS: Final = 8


class Sorted(NamedTuple):
    """What a call returns.

    `sorted_ids`: int32 [max padded total], positions in the flattened topk_ids by expert, n * K for
    padding. `block_experts`: int32, the expert of every block of B, -1 after the padded total.
    `num_padded`: int32 [1].
    """

    sorted_ids: torch.Tensor
    block_experts: torch.Tensor
    num_padded: torch.Tensor


class Problem(NamedTuple):
    """The kind of a call."""

    num_ids: int
    num_experts: int
    block_size: int
    variant: str
    num_blocks: int | None

    @property
    def capacity(self) -> int:
        """The largest possible padded total, in ids."""
        num_named = lesser(self.num_ids, self.num_experts)
        num_blocks = num_named + (self.num_ids - num_named) // self.block_size
        return num_blocks * self.block_size


class Plan(LocalPlan):
    """Calls of moe_align_sort on one device; see LocalPlan."""

    source = _SOURCE

    def __call__(
        self,
        topk_ids: torch.Tensor,
        num_experts: int,
        block_size: int,
        *,
        variant: str = "chained",
        num_blocks: int | None = None,
        out: Sorted | None = None,
        recorder: AnyRecorder | None = None,
    ) -> Sorted:
        """Sort (token, k) ids by expert, stably, and pad every expert's run to a multiple of
        `block_size`.

        `topk_ids`: int32 [n, K], contiguous; `num_blocks` of the grid defaults to what fits the
        device. Raises TypeError or ValueError before any launch. An id that names no expert raises
        ValueError: on the CPU from this call, which launches nothing; on a GPU from the next call
        or from `wait`, and such ids are ignored.
        """
        check_are_tensors(topk_ids=topk_ids)
        kind = Problem(topk_ids.numel(), num_experts, block_size, variant, num_blocks)
        check(topk_ids, kind, self.device)
        result = allocate(topk_ids, kind) if out is None else out
        lengths = (kind.capacity, kind.capacity // kind.block_size, 1)
        for name, tensor, length in zip(Sorted._fields, result, lengths, strict=True):
            check_tensor(f"out.{name}", tensor, topk_ids.dtype, (length,), self.device)
        if topk_ids.is_cpu:
            _check_ids(topk_ids, num_experts)
        self._run(kind, recorder, **addresses_of(topk_ids=topk_ids, **result._asdict()))
        return result

    def _prepare_kind(self, kind: Problem) -> PreparedCall:
        size = _size_of(kind)
        variant_idx = self._library.variants.index(f"{kind.variant}/{size}")
        num_warps = self._warps_per_block(size)
        num_blocks = kind.num_blocks or self._num_blocks(kind, variant_idx, num_warps)
        slice_vectors = -(-kind.num_ids // (num_blocks * _VECTOR_IDS)) or 1
        arguments = self._filled(
            self.source.shape(kind.num_ids, kind.num_experts, num_blocks),
            block_size=kind.block_size,
            slice_ids=slice_vectors * _VECTOR_IDS,
            num_sorted=kind.capacity,
            num_block_experts=kind.capacity // kind.block_size,
        )
        grid = (
            self._library.grid(variant_idx, num_blocks, num_warps)
            if kind.variant == "dcp"
            else self._library.independent_grid(num_blocks, num_warps)
        )
        clear = self._library.independent_grid(1, num_warps)
        phases = self._library.phases[variant_idx]
        launches = [
            Launch(variant_idx, idx, arguments, clear if name.endswith("/clear") else grid)
            for idx, name in enumerate(phases)
        ]
        return self._prepare(arguments, launches)

    def _warps_per_block(self, size: str) -> int:
        if self.is_on_cpu:
            return _CPU_WARPS
        return (256 if size == "many" else 512) // self._library.warp_width

    def _num_blocks(self, kind: Problem, variant_idx: int, num_warps: int) -> int:
        if kind.variant == "single_block":
            return 1
        threads = num_warps * self._library.warp_width
        limit = self._builds.max_resident_blocks(variant_idx, threads)
        limit = min(limit, _CPU_BLOCKS) if self.is_on_cpu else limit
        is_small = kind.variant == "chained" and kind.num_ids <= _FEW_IDS
        block_ids = _FEW_BLOCK_IDS if is_small else _BLOCK_IDS
        return max(1, min(-(-kind.num_ids // block_ids), limit))

    def _refusal(self, refused: int) -> Exception:
        place, value = refused >> 32 & MAX_IDS, ctypes.c_int32(refused & 0xFFFF_FFFF).value
        return ValueError(
            f"element {place} of the flattened topk_ids is {value}, which names no expert; "
            "results without it"
        )


def _size_of(kind: Problem) -> str:
    """The name of the kernels for this call."""
    if kind.num_experts > FEW_EXPERTS:
        return "many"
    if kind.variant == "chained" and kind.num_ids <= _FEW_IDS:
        return "small"
    if kind.variant == "chained" and kind.num_ids >= _LARGE_IDS:
        return "large"
    return "few"


def check(topk_ids: torch.Tensor, kind: Problem, device: str) -> None:
    """Raise TypeError or ValueError for invalid arguments."""
    check_whole("the number of experts", kind.num_experts)
    check_whole("the block size", kind.block_size)
    if kind.num_blocks is not None:
        check_whole("the number of blocks of the grid", kind.num_blocks)
    check_tensor("topk_ids", topk_ids, torch.int32, tuple(topk_ids.shape), device)
    if topk_ids.dim() != 2:
        raise ValueError(f"topk_ids must have shape [n, K], got {list(topk_ids.shape)}")
    check_num_experts(kind.num_experts)
    if topk_ids.shape[1] > kind.num_experts:
        raise ValueError(
            f"topk_ids names {topk_ids.shape[1]} experts per token, but there are only "
            f"{kind.num_experts}"
        )
    if kind.block_size < 1:
        raise ValueError(f"the block size is {kind.block_size}; give 1 or more")
    if kind.num_ids > MAX_IDS:
        raise ValueError(f"{kind.num_ids} ids: give up to {MAX_IDS}; split the tokens")
    if kind.capacity > 2**31 - 1:
        raise ValueError(
            f"{kind.num_ids} ids in blocks of {kind.block_size} do not fit 32-bit positions; "
            "give a smaller block size"
        )
    check_variant(kind.variant, VARIANTS)
    if kind.num_blocks is not None and not 1 <= kind.num_blocks <= _MAX_BLOCKS:
        raise ValueError(f"a grid of {kind.num_blocks} blocks; give 1 to {_MAX_BLOCKS}")
    if kind.variant == "single_block" and kind.num_blocks not in (None, 1):
        raise ValueError(f"single_block runs in 1 block, got a grid of {kind.num_blocks}")


def check_num_experts(num_experts: int) -> None:
    """Raise ValueError for a number of experts that the kernels do not have."""
    if not 1 <= num_experts <= MAX_EXPERTS:
        raise ValueError(f"{num_experts} experts: give 1 to {MAX_EXPERTS}")


def allocate(topk_ids: torch.Tensor, kind: Problem) -> Sorted:
    """Allocate the outputs, on the device of the ids."""
    return Sorted(
        topk_ids.new_empty(kind.capacity),
        topk_ids.new_empty(kind.capacity // kind.block_size),
        torch.empty(1, dtype=torch.int32, device=topk_ids.device),
    )


def _check_ids(topk_ids: torch.Tensor, num_experts: int) -> None:
    is_wrong = (topk_ids < 0) | (topk_ids >= num_experts)
    if bool(is_wrong.any()):
        place = int(is_wrong.flatten().nonzero()[0])
        token, k = divmod(place, topk_ids.shape[1])
        raise ValueError(
            f"topk_ids[{token}, {k}] is {int(topk_ids[token, k])}, and the experts are 0 to "
            f"{num_experts - 1}"
        )


def reference(topk_ids: torch.Tensor, num_experts: int, block_size: int) -> Sorted:
    """The baseline and what tests compare with: from torch's sort, scatter and cumsum. Does not
    wait for a GPU."""
    flat = topk_ids.flatten()
    num_ids, device = flat.numel(), flat.device
    capacity = Problem(num_ids, num_experts, block_size, "", None).capacity
    by_expert, order = torch.sort(flat, stable=True)
    counts = torch.zeros(num_experts, dtype=torch.int64, device=device)
    counts.scatter_add_(0, flat.long(), torch.ones_like(flat, dtype=torch.int64))
    padded = (counts + block_size - 1) // block_size * block_size
    ends, counted = padded.cumsum(0), counts.cumsum(0)
    # From positions in the sorted ids to positions in the padded runs.
    shift = (ends - padded) - (counted - counts)
    sorted_ids = torch.full((capacity,), num_ids, dtype=torch.int32, device=device)
    places = torch.arange(num_ids, device=device) + shift[by_expert.long()]
    sorted_ids[places] = order.int()
    begins = torch.arange(capacity // block_size, device=device) * block_size
    experts = torch.searchsorted(ends, begins, right=True)
    block_experts = torch.where(begins < ends[-1], experts, -1).int()
    return Sorted(sorted_ids, block_experts, ends[-1:].int())
