"""Runs the all-reduce with ranks as threads of the test, between guards, and looks at every bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from thread_ranks import run_threads
from widths import WARP_WIDTH

from changed_kernels import breaking
from instrumented_kernels.all_reduce import HeapSizes, Plan
from instrumented_kernels.all_reduce.values import expected_sum, make_input
from kprof.devices.build import BuildOptions
from kprof.devices.groups import Group
from kprof.devices.targets import Target
from kprof.recording.rank.null_recorder import AnyRecorder

KERNELS = Path(__file__).parents[2] / "instrumented_kernels"
VARIANTS = (
    "oneshot_serial",
    "oneshot_lock",
    "oneshot_tree",
    "oneshot",
    "twoshot_packets",
    "twoshot",
    "ring",
)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
GUARD = 9
GUARD_VALUE = 3.0


@dataclass(frozen=True)
class Call:
    """One all-reduce: `offset` elements into its memory. In place or into memory filled with NaNs."""

    num_elements: int
    dtype: torch.dtype = torch.bfloat16
    variant: str = "oneshot"
    offset: int = 0
    is_in_place: bool = False
    grid: int | None = None


# Small, so that larger tensors go in several launches.
SMALL_HEAP = HeapSizes(1 << 16, 1 << 16)


@dataclass(frozen=True)
class Setting:
    """The ranks and what their plans are made with."""

    world_size: int = 4
    warp_width: int = WARP_WIDTH
    warps_per_block: int = 1
    seed: int = 0
    heap_sizes: HeapSizes = SMALL_HEAP
    timeout_s: float = 60.0
    # Of changed_kernels.RULES.
    broken: tuple[str, ...] = ()

    def plan(self, group: Group) -> Plan:
        options = BuildOptions(
            Target.CPU,
            include_dirs=(KERNELS / "device",),
            warp_width=self.warp_width,
        )
        return breaking(Plan, *self.broken)(
            group,
            warps_per_block=self.warps_per_block,
            heap_sizes=self.heap_sizes,
            timeout_s=self.timeout_s,
            schedule_seed=self.seed,
            options=options,
        )


def count_wrong(plan: Plan, call: Call, number: int, recorder: AnyRecorder | None = None) -> int:
    """Run one call on this rank; wrong bits inside and changed bytes outside the output."""
    inputs = [
        make_input(rank, call.num_elements, call.dtype, number)
        for rank in range(plan.group.world_size)
    ]
    source, target = _guarded(call, GUARD_VALUE), _guarded(call, float("nan"))
    place = slice(call.offset, call.offset + call.num_elements)
    source[place] = inputs[plan.group.rank]
    out = source if call.is_in_place else target
    plan(source[place], out=out[place], variant=call.variant, grid=call.grid, recorder=recorder)
    wrong = int((_bits(out[place]) != _bits(expected_sum(inputs))).sum())
    return wrong + _count_touched(source, place) + _count_touched(target, place)


def _guarded(call: Call, value: float) -> torch.Tensor:
    return torch.full((call.num_elements + 2 * GUARD,), value, dtype=call.dtype)


def _count_touched(memory: torch.Tensor, place: slice) -> int:
    """Elements before and behind the output that are not what they were filled with."""
    outside = torch.cat([memory[: place.start], memory[place.stop :]])
    return int((~(outside.isnan() | (outside == GUARD_VALUE))).sum())


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def run_calls(
    setting: Setting,
    calls: list[Call],
    before_call: Callable[[int, int], None] = lambda rank, number: None,
) -> list[int]:
    """All ranks as threads make these calls with no barrier between them. Wrong values by call, over all ranks."""

    def work(group: Group) -> list[int]:
        plan = setting.plan(group)
        wrong = []
        for number, call in enumerate(calls):
            before_call(group.rank, number)
            wrong.append(count_wrong(plan, call, number))
        plan.close()
        return wrong

    by_rank = run_threads(setting.world_size, work)
    return [sum(each) for each in zip(*by_rank, strict=True)]
