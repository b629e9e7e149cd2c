"""What is compared: the variants of instrumented_kernels.all_reduce, NCCL, and torch's symmetric memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from instrumented_kernels.all_reduce import Plan

Call = Callable[[], object]
MakeCall = Callable[[int], Call]

LIBRARIES = ("nccl", "symm_mem one-shot", "symm_mem two-shot")
# Slow on purpose; above this size they only cost time.
LADDER_ONLY = ("oneshot_serial", "oneshot_lock", "oneshot_tree", "ring")


def library_calls(num_elements: int, dtype: torch.dtype, device: str) -> dict[str, Call]:
    """One call of each library, by name.

    Those of symm_mem are left out where this torch lacks them.
    """
    tensor = torch.zeros(num_elements, dtype=dtype, device=device)
    calls: dict[str, Call] = {"nccl": lambda: dist.all_reduce(tensor)}
    return calls | _symm_mem_calls(num_elements, dtype, device)


def _symm_mem_calls(num_elements: int, dtype: torch.dtype, device: str) -> dict[str, Call]:
    try:
        import torch.distributed._symmetric_memory as symm_mem
    except ImportError:
        return {}
    name = dist.group.WORLD.group_name
    tensor = symm_mem.empty(num_elements, dtype=dtype, device=device)
    symm_mem.rendezvous(tensor, name)
    tensor.zero_()
    ops = torch.ops.symm_mem
    return {
        "symm_mem one-shot": lambda: ops.one_shot_all_reduce(tensor, "sum", name),
        "symm_mem two-shot": lambda: ops.two_shot_all_reduce_(tensor, "sum", name),
    }


def own_call(
    plan: Plan, num_elements: int, dtype: torch.dtype, variant: str, grid: int | None = None
) -> Call:
    """A call of a variant, in place like NCCL's."""
    tensor = torch.zeros(num_elements, dtype=dtype, device=plan.device)
    return lambda: plan(tensor, out=tensor, variant=variant, grid=grid)
