"""Runs the all-to-all as a workload, under `kprof record`, under torchrun, or alone.

Checks the results and prints the time.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Annotated

import typer

from instrumented_kernels import options
from instrumented_kernels.all_to_all.calls import AnyPlan, make_plan
from instrumented_kernels.all_to_all.problem import Problem
from instrumented_kernels.all_to_all.routing import (
    Skew,
    count_wrong,
    make_inputs,
    num_tokens_of,
    reference,
)
from instrumented_kernels.call_ledger import PeerError
from instrumented_kernels.workload import (
    POISON,
    choose_device,
    errors_in_one_line,
    joined_group,
)
from kprof.devices import gpu
from kprof.devices.on_use import torch
from kprof.recording.rank.null_recorder import AnyRecorder, NullRecorder

_NUM_ALIGNING_CALLS = 8


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    shape: Annotated[
        str, typer.Option(help="E,K,D,M: experts, experts per token, row length, tokens per rank")
    ] = ("64,6,2048,8"),
    variant: Annotated[
        str,
        typer.Option(
            help="which step of the ladder to run: torch, rank_flags, token_flags, fused, "
            "balanced or pipelined"
        ),
    ] = "token_flags",
    skew: Annotated[
        float, typer.Option(help="the rank of --skew-rank sends this many times the tokens")
    ] = 1.0,
    skew_rank: Annotated[int, typer.Option(help="the rank that sends more")] = 3,
    delay_ms: options.DelayMs = 0.0,
    delay_rank: options.DelayRank = 3,
    grid: Annotated[
        int | None, typer.Option(help="blocks per launch (default: two per rank, or one per SM)")
    ] = None,
    repeats: Annotated[int, typer.Option(help="calls")] = 3,
    target: options.Target = "auto",
    seed: options.Seed = 1,
) -> None:
    """Run, compare with float64, print the time. Exit non-zero if a value is wrong."""
    with errors_in_one_line("all_to_all", PeerError):
        problem = parse_shape(shape)
        device = choose_device(target)
        with joined_group() as group:
            plan = make_plan(group, problem, variant=variant, device=device, grid=grid)
            delay_s = delay_ms / 1e3 if group.rank == delay_rank else 0.0
            num_wrong = _run(plan, Skew(skew, skew_rank), delay_s, repeats, seed)
    if num_wrong:
        raise typer.Exit(1)


def parse_shape(text: str) -> Problem:
    """E,K,D,M as a Problem; raises ValueError."""
    parts = text.split(",")
    if len(parts) != 4 or not all(part.strip().isdigit() for part in parts):
        raise ValueError(f"--shape takes E,K,D,M such as 64,6,2048,8, got {text!r}")
    return Problem(*(int(part) for part in parts))


def _run(plan: AnyPlan, skew: Skew, delay_s: float, repeats: int, seed: int) -> int:
    """Run a warm-up and `repeats` recorded calls, each with new inputs, and check all of them.

    Aligns clocks before, between and after them. Returns the number of wrong values on all ranks,
    so that all exit alike.
    """
    import kprof

    group = plan.group
    recorder = kprof.recorder(device=plan.device)
    # The first call has page faults and lazy loading, which should not be in the recording.
    warm_up = _run_call(plan, NullRecorder(), skew, 0.0, seed)
    recorder.align(group)
    calls = []
    for number in range(1, repeats + 1):
        calls.append(_run_call(plan, recorder, skew, delay_s, seed + 1000 * number))
        recorder.align_if_due(group)
    recorder.align(group)
    own = [time_ms for time_ms, _ in calls], sum(wrong for _, wrong in (warm_up, *calls))
    times_ms, all_wrong = zip(*group.all_gather(own), strict=True)
    num_wrong: int = sum(all_wrong)
    if group.rank == 0:
        slowest_ms = statistics.median(map(max, zip(*times_ms, strict=True)))
        typer.echo(
            f"all_to_all {plan.variant} on {plan.device.split(':')[0]}: {group.world_size} ranks, "
            f"{plan.in_words}, {repeats} calls, slowest rank {slowest_ms:.1f} ms (median), "
            f"{num_wrong} wrong values"
        )
    return num_wrong


def _run_call(
    plan: AnyPlan, recorder: AnyRecorder, skew: Skew, delay_s: float, seed: int
) -> tuple[float, int]:
    """Milliseconds on this rank's device, and the number of wrong values."""
    problem, rank = plan.problem, plan.group.rank
    inputs = make_inputs(problem, num_tokens_of(problem, rank, skew), seed + rank).to(plan.device)
    out = torch.full_like(inputs.x, POISON)
    call = partial(plan, inputs.x, inputs.indices, inputs.weights, is_async=True)
    plan.group.barrier()
    # Ranks leave a host barrier up to a millisecond apart. Extra calls, which are queued faster
    # than they run, synchronise the devices.
    for _ in range(_NUM_ALIGNING_CALLS if plan.device != "cpu" else 1):
        call()
    time.sleep(delay_s)
    begin = gpu.note_moment(plan.device)
    call(out=out, recorder=recorder)
    end = gpu.note_moment(plan.device)
    plan.wait()
    expected = reference(problem, inputs.to("cpu"), plan.group.world_size)
    return gpu.elapsed_us(begin, end) / 1e3, count_wrong(out.cpu(), expected)


if __name__ == "__main__":
    app()
