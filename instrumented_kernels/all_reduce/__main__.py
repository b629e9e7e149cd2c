"""Runs the all-reduce as a workload, under `kprof record`, under torchrun, or alone.

Checks the results and prints the time.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Final, NamedTuple

import typer

from instrumented_kernels import options
from instrumented_kernels.all_reduce.plan import Plan
from instrumented_kernels.all_reduce.values import expected_sum, make_input
from instrumented_kernels.repeated_calls import Case, Work, run
from instrumented_kernels.workload import POISON, joined_group
from kprof.devices.groups import Group
from kprof.devices.on_use import torch
from kprof.recording.rank.null_recorder import AnyRecorder

_DTYPES: Final = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    variant: Annotated[
        str,
        typer.Option(
            help="oneshot_serial, oneshot_lock, oneshot_tree, oneshot, twoshot_packets, twoshot, "
            "ring, or auto"
        ),
    ] = "auto",
    numel: Annotated[int, typer.Option(help="elements")] = 32768,
    dtype: Annotated[str, typer.Option(help="fp16, bf16 or fp32")] = "bf16",
    delay_ms: options.DelayMs = 0.0,
    delay_rank: options.DelayRank = 3,
    grid: Annotated[
        int | None, typer.Option(help="blocks per launch (default: what was tuned for the size)")
    ] = None,
    repeats: Annotated[int, typer.Option(help="calls, back to back")] = 3,
    graph: options.Graph = False,
    target: options.Target = "auto",
    seed: options.Seed = 1,
) -> None:
    """Run, check every bit, print the time. Exit non-zero if a value is wrong."""

    def make_work(device: str, group: Group) -> Work:
        call = _Call(_checked_numel(numel), _torch_dtype(dtype), variant, grid)
        plan = Plan(group, device=device)
        delay_s = delay_ms / 1e3 if group.rank == delay_rank else 0.0
        launches = plan.launches(*call)
        times = f"{len(launches)} launches of " if len(launches) > 1 else ""
        return Work(
            plan,
            lambda number: _case(plan, call, seed + number, delay_s if number else 0.0),
            f"{group.world_size} ranks, {numel} x {call.dtype}",
            "{}{}, {} blocks".format(times, *launches[0]),
            "slowest rank ",
            lambda: plan.prepare(_input(call, 0, 0).to(device), variant, grid, is_recorded=True),
        )

    run("all_reduce", make_work, target, repeats, graph, joined_group())


class _Call(NamedTuple):
    """The call to repeat."""

    num_elements: int
    dtype: torch.dtype
    variant: str
    grid: int | None


def _input(call: _Call, rank: int, seed: int) -> torch.Tensor:
    return make_input(rank, call.num_elements, call.dtype, seed)


def _case(plan: Plan, call: _Call, seed: int, delay_s: float) -> Case:
    """A call with its own input and output, which starts late."""
    tensor = _input(call, plan.group.rank, seed).to(plan.device)
    out = torch.full_like(tensor, POISON)

    def launch(recorder: AnyRecorder) -> None:
        if delay_s:
            time.sleep(delay_s)
        plan(tensor, out=out, variant=call.variant, grid=call.grid, recorder=recorder)

    def num_wrong() -> int:
        """The number of elements with wrong bits."""
        inputs = [_input(call, rank, seed) for rank in range(plan.group.world_size)]
        return int((out.cpu() != expected_sum(inputs)).sum())

    return Case(launch, num_wrong)


def _torch_dtype(name: str) -> Any:
    if name not in _DTYPES:
        raise ValueError(f"--dtype {name!r} is not known; choose one of {', '.join(_DTYPES)}")
    return getattr(torch, _DTYPES[name])


def _checked_numel(num_elements: int) -> int:
    if num_elements < 1:
        raise ValueError(f"--numel takes a number of elements, got {num_elements}")
    return num_elements


if __name__ == "__main__":
    app()
