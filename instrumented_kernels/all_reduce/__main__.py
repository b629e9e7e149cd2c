"""Runs the all-reduce as a workload, under `kprof record`, under torchrun, or alone.

Checks the results and prints the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from instrumented_kernels.all_reduce.plan import Plan
from instrumented_kernels.all_reduce.values import expected_sum, make_input
from instrumented_kernels.call_ledger import PeerError
from instrumented_kernels.command_line import (
    POISON,
    Delay,
    DelayOption,
    DelayRankOption,
    ScheduleSeedOption,
    SeedOption,
    TargetOption,
    WarpsOption,
    errors_in_one_line,
)
from instrumented_kernels.workload import choose_device, joined_group
from kprof.groups import Group
from kprof.recording.null_recorder import AnyRecorder, NullRecorder

if TYPE_CHECKING:
    import torch


_DTYPES: Final = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


@dataclass(frozen=True)
class Result:
    """One rank's calls: wall time of all of them and the number of wrong values."""

    elapsed_s: float
    num_wrong: int


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
    delay_ms: DelayOption = 0.0,
    delay_rank: DelayRankOption = 3,
    grid: Annotated[
        int | None, typer.Option(help="blocks per launch (default: what was tuned for the size)")
    ] = None,
    warps_per_block: WarpsOption = None,
    repeats: Annotated[int, typer.Option(help="calls, back to back")] = 3,
    graph: Annotated[
        bool,
        typer.Option(help="capture the calls in one CUDA graph: the host's pace does not show"),
    ] = False,
    target: TargetOption = "auto",
    seed: SeedOption = 1,
    schedule_seed: ScheduleSeedOption = 0,
) -> None:
    """Run, check every bit, print the time. Exit non-zero if a value is wrong."""
    with errors_in_one_line("all_reduce", PeerError):
        call = _Call(variant, _checked_numel(numel), _torch_dtype(dtype), grid)
        device = choose_device(target)
        with joined_group() as group:
            plan = Plan(
                group, device=device, warps_per_block=warps_per_block, schedule_seed=schedule_seed
            )
            result = run(plan, call, Delay(delay_ms / 1e3, delay_rank), repeats, seed, graph)
            num_wrong = _report(group, plan, call, repeats, result)
            plan.close()
    if num_wrong:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Call:
    """The call to repeat."""

    variant: str
    num_elements: int
    dtype: torch.dtype
    grid: int | None


def run(
    plan: Plan, call: _Call, delay: Delay, repeats: int, seed: int, is_graph: bool = False
) -> Result:
    """Run a warm-up, then `repeats` recorded calls back to back, each with new inputs, and check
    all of them.

    Clocks are aligned before and after. Raises ValueError for a graph of calls on the CPU.
    """
    import kprof

    if is_graph and plan.device == "cpu":
        raise ValueError("--graph captures calls on a GPU; leave it out on the CPU target")
    recorder = kprof.recorder(device=plan.device)
    # The first call has page faults and lazy loading, which should not be in the recording.
    warm_up = _Batch(plan, call, [seed])
    warm_up.launch(NullRecorder(), Delay())
    batch = _Batch(plan, call, [seed + number for number in range(1, repeats + 1)])
    batch.prepare(recorder)
    recorder.align(plan.group)
    go = batch.captured(recorder) if is_graph else lambda: batch.launch(recorder, delay)
    batch.settle()
    begin = time.perf_counter()
    go()
    plan.wait()
    elapsed_s = time.perf_counter() - begin
    recorder.align(plan.group)
    return Result(elapsed_s, warm_up.count_wrong() + batch.count_wrong())


class _Batch:
    """Calls with an input and an output each."""

    def __init__(self, plan: Plan, call: _Call, seeds: list[int]) -> None:
        import torch

        self._plan, self._call, self._seeds = plan, call, seeds
        self._inputs = [self._input(plan.group.rank, seed).to(plan.device) for seed in seeds]
        self._outs = [torch.full_like(tensor, POISON) for tensor in self._inputs]

    def launch(self, recorder: AnyRecorder, delay: Delay) -> None:
        for tensor, out in zip(self._inputs, self._outs, strict=True):
            if self._plan.group.rank == delay.rank and delay.seconds:
                time.sleep(delay.seconds)
            call = self._call
            self._plan(tensor, out=out, variant=call.variant, grid=call.grid, recorder=recorder)

    def prepare(self, recorder: AnyRecorder) -> None:
        """Load the kernels, so that no call waits for that."""
        self._plan.prepare(
            self._inputs[0], self._call.variant, self._call.grid, recorder.is_recording
        )

    def captured(self, recorder: AnyRecorder) -> Callable[[], None]:
        """A function that replays all calls from a graph."""
        import torch

        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.launch(recorder, Delay())
        return graph.replay

    def settle(self) -> None:
        """Wait until all ranks are ready and nothing is running."""
        self._plan.wait()
        self._plan.group.barrier()

    def count_wrong(self) -> int:
        """The number of elements with wrong bits, over all calls."""
        ranks = range(self._plan.group.world_size)
        return sum(
            int((out.cpu() != expected_sum([self._input(rank, seed) for rank in ranks])).sum())
            for out, seed in zip(self._outs, self._seeds, strict=True)
        )

    def _input(self, rank: int, seed: int) -> torch.Tensor:
        return make_input(rank, self._call.num_elements, self._call.dtype, seed)


def _report(group: Group, plan: Plan, call: _Call, repeats: int, result: Result) -> int:
    """Print the result, on rank 0.

    Returns the number of wrong values on all ranks, so that all exit alike.
    """
    everyone = group.all_gather(result)
    num_wrong: int = sum(each.num_wrong for each in everyone)
    if group.rank == 0:
        each_us = 1e6 * max(each.elapsed_s for each in everyone) / repeats
        launches = plan.launches(call.num_elements, call.dtype, call.variant, call.grid)
        typer.echo(
            f"{_launches_in_words(launches)} on {plan.device.split(':')[0]}: {group.world_size} "
            "ranks, "
            f"{call.num_elements} x {call.dtype}, {repeats} calls, slowest rank {each_us:.1f} us "
            "a call "
            f"on the host's clock, {num_wrong} wrong values"
        )
    return num_wrong


def _launches_in_words(launches: list[tuple[str, int]]) -> str:
    kernel, num_blocks = launches[0]
    times = f"{len(launches)} launches of " if len(launches) > 1 else ""
    return f"{times}{kernel}, {num_blocks} blocks"


def _torch_dtype(name: str) -> Any:
    import torch

    if name not in _DTYPES:
        raise ValueError(f"--dtype {name!r} is not known; choose one of {', '.join(_DTYPES)}")
    return getattr(torch, _DTYPES[name])


def _checked_numel(num_elements: int) -> int:
    if num_elements < 1:
        raise ValueError(f"--numel takes a number of elements, got {num_elements}")
    return num_elements


if __name__ == "__main__":
    app()
