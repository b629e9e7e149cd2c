"""The `torch` variant: what a good torch user writes without a kernel, and the baseline for the
others.

Sort the (token, k) pairs once by expert, gather the rows, exchange counts and rows, sort what
arrived by local expert, apply the expert, and all the way back. It synchronises with the host once
per call, for the split sizes that all_to_all_single needs there.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from instrumented_kernels.all_to_all.problem import Problem
from instrumented_kernels.call_ledger import CallLedger
from kprof.devices import gpu
from kprof.devices.groups import Group, TorchGroup
from kprof.devices.on_use import torch
from kprof.recording.rank.null_recorder import AnyRecorder


@dataclass(frozen=True)
class _Received:
    """Rows that arrived at this rank, in the order of the local experts, and how to undo that
    order."""

    rows: torch.Tensor
    order: torch.Tensor
    num_sent_to: list[int]
    num_received_from: list[int]


class TorchPlan:
    """The same call as Plan's, through torch.distributed: NCCL on NVIDIA, RCCL on AMD, gloo on the
    CPU.

    Creation is collective over all ranks of the job. Raises ValueError without a torch process
    group. It uses none of our kernels, so a recorder has nothing to record.
    """

    variant = "torch"
    in_words = "through torch.distributed"

    def __init__(
        self,
        group: Group,
        problem: Problem,
        *,
        device: str = "cpu",
        ledger: CallLedger | None = None,
    ) -> None:
        problem.check(group.world_size)
        if not isinstance(group, TorchGroup) and group.world_size > 1:
            raise ValueError(
                "the torch variant needs a torch process group; start the ranks with torchrun"
            )
        self.problem = problem
        self.group = group
        self.device = device
        self._exchange_group = _exchange_group(group, device)
        self._ledger = ledger

    def __call__(
        self,
        x: torch.Tensor,
        indices: torch.Tensor,
        weights: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        recorder: AnyRecorder | None = None,
        is_async: bool = False,
    ) -> torch.Tensor:
        """Run one call on this rank, like Plan.__call__."""
        del recorder
        with self._ledger.preparing if self._ledger else nullcontext():
            self.problem.check_tensors(x, indices, weights, out, self.device)
            if not is_async:
                self.problem.check_indices(indices)
        if self._ledger is not None:
            text = f"all_to_all of {self.problem} ({self.variant})"
            self._ledger.note(self._ledger.fingerprint(text))
        sorted_experts, order = indices.view(-1).sort(stable=True)
        received = self._dispatch(x, sorted_experts, order)
        # A scalar factor multiplies in fp32 and rounds once, like the kernels.
        returned = self._send_back(received, received.rows * (1.0 + self.group.rank))
        combined = torch.empty_like(returned)
        combined[order] = returned
        products = combined.view(*weights.shape, self.problem.hidden) * weights.unsqueeze(-1)
        result = torch.empty_like(x) if out is None else out
        result.copy_(products.sum(dim=1))
        if not is_async:
            self.wait()
        return result

    def wait(self) -> None:
        """Wait for all calls on this rank."""
        gpu.synchronize(self.device)

    def close(self) -> None:
        """Release the process group. Collective."""
        if self._exchange_group is not None and self.device != "cpu":
            torch.distributed.destroy_process_group(self._exchange_group.process_group)
        self._exchange_group = None

    def abandon(self) -> None:
        """Release everything of a group that was destroyed."""
        self._exchange_group = None

    def _dispatch(
        self, x: torch.Tensor, sorted_experts: torch.Tensor, order: torch.Tensor
    ) -> _Received:
        world_size, top_k = self.group.world_size, self.problem.top_k
        num_local = self.problem.num_experts // world_size
        sent = torch.bincount(sorted_experts, minlength=self.problem.num_experts)
        arriving = self._exchange(torch.empty_like(sent), sent, None, None)
        # One copy to the host for both, because each copy waits for the device.
        totals = torch.stack([sent, arriving]).view(2, world_size, num_local).sum(dim=2).tolist()
        rows = x.new_empty(sum(totals[1]), x.shape[1])
        self._exchange(rows, x[order // top_k], totals[1], totals[0])
        local = torch.arange(num_local, device=x.device).repeat(world_size)
        by_expert = torch.repeat_interleave(local, arriving, output_size=len(rows)).argsort(
            stable=True
        )
        return _Received(rows[by_expert], by_expert, totals[0], totals[1])

    def _send_back(self, received: _Received, results: torch.Tensor) -> torch.Tensor:
        in_arrival_order = torch.empty_like(results)
        in_arrival_order[received.order] = results
        returned = results.new_empty(sum(received.num_sent_to), results.shape[1])
        return self._exchange(
            returned, in_arrival_order, received.num_sent_to, received.num_received_from
        )

    def _exchange(
        self,
        target: torch.Tensor,
        source: torch.Tensor,
        num_from: list[int] | None,
        num_to: list[int] | None,
    ) -> torch.Tensor:
        """all_to_all_single. A single rank keeps its data."""
        if self.group.world_size == 1 or self._exchange_group is None:
            return target.copy_(source)
        process_group = self._exchange_group.process_group
        torch.distributed.all_to_all_single(target, source, num_from, num_to, group=process_group)
        return target


def _exchange_group(group: Group, device: str) -> TorchGroup | None:
    """The group itself on the CPU. On GPUs an NCCL (RCCL) group, whatever backend the group has."""
    if not isinstance(group, TorchGroup) or device == "cpu":
        return group if isinstance(group, TorchGroup) else None
    ranks = torch.distributed.get_process_group_ranks(group.process_group)
    return TorchGroup(torch.distributed.new_group(ranks, backend="nccl"))
