"""What an all-to-all computes, and the checks of its inputs."""

from __future__ import annotations

from dataclasses import dataclass

from instrumented_kernels.plan import check_world_size
from instrumented_kernels.tensors import check_tensor
from kprof.devices.on_use import torch


@dataclass(frozen=True)
class Problem:
    """E experts, K per token, rows of D fp16 elements, at most M tokens per rank."""

    num_experts: int
    top_k: int
    hidden: int
    max_tokens: int

    def check(self, world_size: int) -> None:
        """Raise ValueError with one sentence if `world_size` ranks cannot share the problem."""
        if min(self.num_experts, self.top_k, self.hidden, self.max_tokens) < 1:
            raise ValueError(f"the shape E,K,D,M must be positive, got {self}")
        check_world_size(world_size)
        if self.num_experts % world_size:
            raise ValueError(
                f"{self.num_experts} experts cannot be divided evenly among {world_size} ranks; "
                "make E a multiple of the number of ranks"
            )
        if self.top_k > self.num_experts:
            raise ValueError(
                f"K = {self.top_k} distinct experts of E = {self.num_experts} do not exist"
            )

    def check_tensors(
        self,
        x: torch.Tensor,
        indices: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor | None,
        device: str,
    ) -> None:
        """Raise TypeError or ValueError with one sentence for a tensor that is wrong there."""
        n = x.shape[0]
        check_tensor("x", x, torch.float16, (n, self.hidden), device)
        check_tensor("indices", indices, torch.int32, (n, self.top_k), device)
        check_tensor("weights", weights, torch.float32, (n, self.top_k), device)
        if out is not None:
            check_tensor("out", out, torch.float16, (n, self.hidden), device)
        if n > self.max_tokens:
            raise ValueError(f"x has {n} tokens, the plan holds {self.max_tokens} (M) per rank")

    def check_indices(self, indices: torch.Tensor) -> None:
        """Raise ValueError if an expert does not exist or a token names it twice.

        Reads the values.
        """
        if indices.numel() == 0:
            return
        outside = ((indices < 0) | (indices >= self.num_experts)).nonzero()
        if len(outside):
            token, k = outside[0].tolist()
            raise self.index_error(token, int(indices[token, k]))
        in_order = indices.sort(dim=1).values
        repeated = (in_order[:, 1:] == in_order[:, :-1]).nonzero()
        if len(repeated):
            token, k = repeated[0].tolist()
            raise self.index_error(token, int(in_order[token, k]))

    def index_error(self, token: int, expert: int) -> ValueError:
        """The error for a token whose expert does not exist or is named twice."""
        if not 0 <= expert < self.num_experts:
            return ValueError(
                f"token {token} names expert {expert}; indices must lie in 0 .. "
                f"{self.num_experts - 1} (E = {self.num_experts})"
            )
        return ValueError(
            f"token {token} names an expert twice ({expert}); its K experts must be distinct"
        )
