"""Inputs for the all-to-all (tokens, routing, weights), seeded per rank, with deliberate imbalance.

Also the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from instrumented_kernels.all_to_all.problem import Problem
from kprof.devices.on_use import torch

# The error bounds of fp32 accumulation with one rounding to fp16, relative to float64.
RTOL: Final = 2.5e-3
ATOL: Final = 1.25e-3


@dataclass(frozen=True)
class Inputs:
    """x fp16 [n, D], indices int32 [n, K] distinct in a row, weights fp32 [n, K] not normalised."""

    x: torch.Tensor
    indices: torch.Tensor
    weights: torch.Tensor

    def to(self, device: str) -> Inputs:
        """The same inputs on another device."""
        return Inputs(self.x.to(device), self.indices.to(device), self.weights.to(device))


@dataclass(frozen=True)
class Skew:
    """Rank `rank` sends `factor` times the tokens of the others. With a factor of 1 all send the
    same."""

    factor: float = 1.0
    rank: int = 0


def num_tokens_of(problem: Problem, rank: int, skew: Skew) -> int:
    """The tokens of a rank: M for all without skew; with skew M / factor for all but the heavy
    rank."""
    if skew.factor == 1.0:
        return problem.max_tokens
    others = max(1, int(problem.max_tokens / skew.factor))
    return min(problem.max_tokens, round(others * skew.factor)) if rank == skew.rank else others


def make_inputs(problem: Problem, num_tokens: int, seed: int) -> Inputs:
    """New random inputs for one rank and call."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, problem.hidden, generator=generator).to(torch.float16)
    scores = torch.rand(num_tokens, problem.num_experts, generator=generator)
    indices = scores.argsort(dim=1)[:, : problem.top_k].to(torch.int32).contiguous()
    weights = torch.rand(num_tokens, problem.top_k, generator=generator) + 0.1
    return Inputs(x, indices, weights)


def reference(problem: Problem, inputs: Inputs, world_size: int) -> torch.Tensor:
    """The result in float64, [n, D]: sum over k of weight * fp16(x * (1 + rank of the expert))."""
    experts_per_rank = problem.num_experts // world_size
    ranks = torch.div(inputs.indices, experts_per_rank, rounding_mode="floor").to(torch.float32)
    x = inputs.x.to(torch.float32)
    total = torch.zeros(x.shape, dtype=torch.float64)
    for k in range(problem.top_k):
        y = (x * (1.0 + ranks[:, k : k + 1])).to(torch.float16)
        total += inputs.weights[:, k : k + 1].to(torch.float64) * y.to(torch.float64)
    return total


def count_wrong(result: torch.Tensor, expected: torch.Tensor) -> int:
    """The number of values outside the tolerance, including NaNs."""
    error = (result.to(torch.float64) - expected).abs()
    return int((~(error <= ATOL + RTOL * expected.abs())).sum())
