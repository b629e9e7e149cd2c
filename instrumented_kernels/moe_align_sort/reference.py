"""moe_align_sort in torch: the baseline and the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instrumented_kernels.moe_align_sort.plan import Problem, Sorted

if TYPE_CHECKING:
    import torch


def reference(topk_ids: torch.Tensor, num_experts: int, block_size: int) -> Sorted:
    """The same outputs from torch's sort, bincount and cumsum. Does not wait for a GPU."""
    import torch

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
