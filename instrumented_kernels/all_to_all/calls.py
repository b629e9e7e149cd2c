"""The one call: plans are made when they are first needed and kept, one per group, device, shape and variant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from instrumented_kernels.all_to_all.plan import Plan
from instrumented_kernels.all_to_all.problem import Problem
from instrumented_kernels.all_to_all.torch_baseline import TorchPlan
from kprof.groups import SoloGroup, TorchGroup

if TYPE_CHECKING:
    import torch

    from kprof.groups import Group
    from kprof.recording.recorder import NullRecorder, Recorder

AnyPlan = Plan | TorchPlan
DEFAULT_MAX_TOKENS: Final = 256


@dataclass(frozen=True)
class _Key:
    """What a plan is for. The process group is held by the key, so its identity is not given to another meanwhile."""

    process_group: Any
    device: str
    problem: Problem
    variant: str
    grid: int | None
    warps_per_block: int | None


_plans: dict[_Key, AnyPlan] = {}


def all_to_all(
    x: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    *,
    num_experts: int,
    variant: str = "pipelined",
    max_tokens: int = DEFAULT_MAX_TOKENS,
    grid: int | None = None,
    warps_per_block: int | None = None,
    recorder: Recorder | NullRecorder | None = None,
    process_group: Any = None,
    out: torch.Tensor | None = None,
    is_async: bool = False,
) -> torch.Tensor:
    """Dispatch tokens to their experts, apply the stand-in for the expert, combine: fp16 [n, D] on the device of `x`.

    `x` fp16 [n, D], `indices` int32 [n, K] of E = `num_experts`, `weights` fp32 [n, K]; n may differ from rank to rank
    up to `max_tokens`, everything else is the same on all ranks. `variant` is "torch" or one of the kernel's. Without a
    torch process group this process is a group of one. The first call of its kind on a group is collective (it makes a
    plan); the others only need that all ranks make the same calls. `is_async` is Plan's: no values are looked at,
    nothing is waited for. Raises what Plan raises.

    Memory is freed by `close_plans`, best called before destroy_process_group. Plans of a group that was destroyed are
    freed when the next plan is made.
    """
    problem = Problem(num_experts, indices.shape[1], x.shape[1], max_tokens)
    key = _Key(
        _group_or_default(process_group), str(x.device), problem, variant, grid, warps_per_block
    )
    plan = _plans.get(key)
    if plan is None:
        _abandon_dead_plans()
        plan = _plans[key] = _make_plan(key)
    return plan(x, indices, weights, out=out, recorder=recorder, is_async=is_async)


def make_plan(
    group: Group,
    problem: Problem,
    *,
    variant: str,
    device: str,
    grid: int | None = None,
    warps_per_block: int | None = None,
    schedule_seed: int = 0,
) -> AnyPlan:
    """A plan of any variant, `torch` included; raises what Plan and TorchPlan raise."""
    if variant == "torch":
        return TorchPlan(group, problem, device=device)
    return Plan(
        group,
        problem,
        variant=variant,
        device=device,
        grid=grid,
        warps_per_block=warps_per_block,
        schedule_seed=schedule_seed,
    )


def close_plans() -> None:
    """Free all plans of this process. Collective over every group that has any."""
    _abandon_dead_plans()
    while _plans:
        _plans.popitem()[1].close()


def _make_plan(key: _Key) -> AnyPlan:
    group = SoloGroup() if key.process_group is None else TorchGroup(key.process_group)
    return make_plan(
        group,
        key.problem,
        variant=key.variant,
        device=key.device,
        grid=key.grid,
        warps_per_block=key.warps_per_block,
    )


def _group_or_default(process_group: Any) -> Any:
    """The group to use; None for a process alone."""
    if process_group is not None:
        return process_group
    import torch.distributed as dist

    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


def _abandon_dead_plans() -> None:
    """Free what belongs to groups that are no more: they cannot meet for it, and nobody can be calling."""
    for key in [key for key in _plans if not _is_alive(key.process_group)]:
        _plans.pop(key).abandon()


def _is_alive(process_group: Any) -> bool:
    import torch.distributed as dist

    if process_group is None:
        return True
    try:
        return dist.is_initialized() and dist.get_rank(process_group) >= 0
    except (ValueError, RuntimeError):
        return False
