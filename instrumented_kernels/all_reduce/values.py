"""Inputs for the all-reduce, seeded per rank, so that every rank can compute all of them.

Also the exact result.
"""

from __future__ import annotations

from kprof.devices.on_use import torch


def make_input(rank: int, num_elements: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """The input of `rank`: normal random numbers."""
    generator = torch.Generator().manual_seed(100_003 * seed + rank)
    return torch.randn(num_elements, generator=generator).to(dtype)


def expected_sum(inputs: list[torch.Tensor]) -> torch.Tensor:
    """The exact result: added in fp32 in rank order, rounded once."""
    # Starts with the first summand, because a sum that starts with +0 loses the sign of -0.
    total = inputs[0].to(torch.float32, copy=True)
    for tensor in inputs[1:]:
        total += tensor.float()
    return total.to(inputs[0].dtype)
