"""all_to_all as a function. Plans are made on first use, and live as long as the process group."""

from __future__ import annotations

from typing import Any, Final

from instrumented_kernels.all_to_all.plan import Plan
from instrumented_kernels.all_to_all.problem import Problem
from instrumented_kernels.all_to_all.torch_baseline import TorchPlan
from instrumented_kernels.call_ledger import CallLedger
from instrumented_kernels.plan_cache import PlanCache
from instrumented_kernels.tensors import check_are_tensors
from kprof.devices.groups import Group
from kprof.devices.on_use import torch
from kprof.recording.rank.null_recorder import AnyRecorder

AnyPlan = Plan | TorchPlan
DEFAULT_MAX_TOKENS: Final = 256

_plans: Final[PlanCache[AnyPlan]] = PlanCache("all_to_all")


def all_to_all(
    x: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    *,
    num_experts: int,
    variant: str = "pipelined",
    max_tokens: int = DEFAULT_MAX_TOKENS,
    recorder: AnyRecorder | None = None,
    process_group: Any = None,
    out: torch.Tensor | None = None,
    is_async: bool = False,
) -> torch.Tensor:
    """Dispatch tokens to their experts, apply the placeholder for the expert, combine; see
    Plan.__call__. `variant` is "torch" or one of the kernel's.

    The experts are E = `num_experts`; n may differ from rank to rank up to `max_tokens`, everything
    else is the same on all ranks. The first call of its kind on a group, by default torch's or this
    process alone, is collective: it makes a plan. Memory is freed when the group is destroyed, or
    by `close_plans`. Raises what Plan raises, also from `close_plans`.
    """
    with _plans.preparing(process_group):
        check_are_tensors(x=x, indices=indices, weights=weights)
        problem = Problem(num_experts, indices.shape[1], x.shape[1], max_tokens)
    plan = _plans.get(
        process_group,
        (problem, variant),
        x,
        lambda group, ledger: make_plan(
            group, problem, variant=variant, device=str(x.device), ledger=ledger
        ),
    )
    return plan(x, indices, weights, out=out, recorder=recorder, is_async=is_async)


# On this rank, for all calls of `all_to_all`.
wait: Final = _plans.wait
close_plans: Final = _plans.close


def make_plan(
    group: Group,
    problem: Problem,
    *,
    variant: str,
    device: str,
    grid: int | None = None,
    ledger: CallLedger | None = None,
) -> AnyPlan:
    """A plan for any variant, including `torch`. Raises like Plan and TorchPlan."""
    if variant == "torch":
        return TorchPlan(group, problem, device=device, ledger=ledger)
    return Plan(group, problem, variant=variant, device=device, grid=grid, ledger=ledger)
