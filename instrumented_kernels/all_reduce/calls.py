"""all_reduce as a function: plans are made at the first call of a process group and kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from instrumented_kernels.all_reduce.plan import Plan
from kprof.groups import Group, SoloGroup, TorchGroup
from kprof.recording.recorder import NullRecorder, Recorder

if TYPE_CHECKING:
    import torch

_plans: dict[tuple[Any, int], Plan] = {}


def all_reduce(
    tensor: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    variant: str = "auto",
    grid: int | None = None,
    recorder: Recorder | NullRecorder | None = None,
    process_group: Any = None,
) -> torch.Tensor:
    """Sum of `tensor` (fp16, bf16 or fp32, contiguous) over the ranks of the process group; see Plan.__call__.

    The first call on a group is collective beyond the sum: it allocates, so make one before capturing a CUDA graph.
    Plans are kept until `close_plans`.
    """
    return _plan_of(process_group, tensor)(
        tensor, out=out, variant=variant, grid=grid, recorder=recorder
    )


def close_plans() -> None:
    """Free all plans that `all_reduce` has made. Collective."""
    while _plans:
        _plans.popitem()[1].close()


def _plan_of(process_group: Any, tensor: torch.Tensor) -> Plan:
    import torch.distributed as dist

    if process_group is None and dist.is_initialized():
        process_group = dist.group.WORLD
    key = (process_group, tensor.get_device())
    plan = _plans.get(key)
    if plan is None:
        group: Group = SoloGroup() if process_group is None else TorchGroup(process_group)
        plan = _plans[key] = Plan(group, device=str(tensor.device))
    return plan
