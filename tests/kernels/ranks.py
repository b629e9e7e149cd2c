"""Runs the all-to-all with ranks as threads of the test: fast, and every rank's data is at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from thread_ranks import ThreadGroup, run_threads
from widths import WARP_WIDTH

from changed_kernels import breaking
from delivery import Dispatched, dispatched
from instrumented_kernels.all_to_all import Plan, Problem
from instrumented_kernels.all_to_all.routing import Inputs, count_wrong, make_inputs, reference
from kprof.devices.build import BuildOptions
from kprof.devices.targets import Target
from kprof.recording.launcher.record import session
from kprof.recording.rank.null_recorder import AnyRecorder, NullRecorder
from kprof.recording.rank.recorder import Recorder

KERNELS = Path(__file__).parents[2] / "instrumented_kernels"

MakeInputs = Callable[[int, int], Inputs]


@dataclass(frozen=True)
class Run:
    """What to run: `inputs(rank, call)` defaults to full, random inputs."""

    problem: Problem
    world_size: int
    variant: str = "token_flags"
    num_calls: int = 2
    grid: int | None = None
    warps_per_block: int | None = None
    warp_width: int = WARP_WIDTH
    seed: int = 0
    timeout_s: float = 60.0
    inputs: MakeInputs | None = None
    before_call: Callable[[int, int], None] = lambda rank, call: None
    defines: tuple[tuple[str, str], ...] = ()
    # Of changed_kernels.RULES.
    broken: tuple[str, ...] = ()

    def options(self) -> BuildOptions:
        return BuildOptions(
            Target.CPU,
            include_dirs=(KERNELS / "device",),
            warp_width=self.warp_width,
            defines=self.defines,
        )

    def inputs_of(self, rank: int, call: int) -> Inputs:
        if self.inputs is not None:
            return self.inputs(rank, call)
        return make_inputs(
            self.problem, self.problem.max_tokens, 7919 * call + 31 * rank + self.seed
        )


@dataclass(frozen=True)
class RankResult:
    num_wrong: int
    num_rows_sent: int
    dispatched: list[Dispatched] = field(default_factory=list)


def run_rank(run: Run, group: ThreadGroup, recorder: AnyRecorder) -> RankResult:
    plan = breaking(Plan, *run.broken)(
        group,
        run.problem,
        variant=run.variant,
        grid=run.grid,
        warps_per_block=run.warps_per_block,
        timeout_s=run.timeout_s,
        schedule_seed=run.seed,
        options=run.options(),
    )
    num_wrong = num_rows = 0
    delivered = []
    for call in range(run.num_calls):
        inputs = run.inputs_of(group.rank, call)
        out = torch.full_like(inputs.x, float("nan"))
        run.before_call(group.rank, call)
        plan(inputs.x, inputs.indices, inputs.weights, out=out, recorder=recorder)
        num_wrong += count_wrong(out, reference(run.problem, inputs, group.world_size))
        num_rows += inputs.indices.numel()
        delivered.append(dispatched(plan))
    plan.close()
    return RankResult(num_wrong, num_rows, delivered)


def run_ranks(run: Run) -> list[RankResult]:
    """All ranks as threads, nothing recorded."""
    return run_threads(run.world_size, lambda group: run_rank(run, group, NullRecorder()))


def record_ranks(run: Run, output: Path, *, arena_bytes: int = 1 << 22) -> list[RankResult]:
    """All ranks as threads, recorded into a capture."""

    def work(group: ThreadGroup) -> RankResult:
        recorder = Recorder(
            directory, rank=group.rank, world_size=group.world_size, arena_bytes=arena_bytes
        )
        recorder.align(group)
        result = run_rank(run, group, recorder)
        recorder.align(group)
        recorder.close()
        return result

    with session(output) as directory:
        return run_threads(run.world_size, work)
