"""all_reduce as a function. The first call on a process group makes its plan."""

from __future__ import annotations

from typing import Any, Final

from instrumented_kernels.all_reduce.plan import Plan
from instrumented_kernels.plan_cache import PlanCache
from kprof.devices.on_use import torch
from kprof.recording.rank.null_recorder import AnyRecorder

_plans: Final[PlanCache[Plan]] = PlanCache("all_reduce")


def all_reduce(
    tensor: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    variant: str = "auto",
    recorder: AnyRecorder | None = None,
    process_group: Any = None,
) -> torch.Tensor:
    """Sum of `tensor` (fp16, bf16 or fp32, contiguous) over the ranks of the process group; see
    Plan.__call__.

    The first call on a group also allocates, so make one before you capture a CUDA graph. The
    memory is freed when the group is destroyed, or by `close_plans`.

    Raises DifferentCallsError if a peer has made a different call on this group. On a GPU the call
    is only launched: if a peer never arrives, the next call, `wait` or `close_plans` raises
    PeerTimeoutError, also for calls in a graph.
    """
    plan = _plans.get(
        process_group,
        "any tensor",
        tensor,
        lambda group, ledger: Plan(group, device=str(tensor.device), ledger=ledger),
    )
    return plan(tensor, out=out, variant=variant, recorder=recorder)


# On this rank, for all calls of `all_reduce`.
wait: Final = _plans.wait
close_plans: Final = _plans.close
