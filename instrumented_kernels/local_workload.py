"""Runs calls of a kernel for one GPU as a workload, under `kprof record` or alone.

Checks the results, and times the calls on the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instrumented_kernels.command_line import errors_in_one_line
from instrumented_kernels.local_plan import BlockTimeoutError
from instrumented_kernels.workload import choose_device
from kprof.groups import SoloGroup
from kprof.recording.null_recorder import NullRecorder

if TYPE_CHECKING:
    from instrumented_kernels.local_plan import LocalPlan
    from kprof.recording.null_recorder import AnyRecorder

RepeatsOption = Annotated[int, typer.Option(help="calls, back to back, each with its own inputs")]
GraphOption = Annotated[
    bool, typer.Option(help="capture the calls in one CUDA graph: the host's pace does not show")
]
TargetOption = Annotated[
    str, typer.Option(help="cpu, cuda or hip; auto takes a GPU if there is one")
]


@dataclass(frozen=True)
class Case:
    """One call and its check. `launch` takes a recorder; call `num_wrong` after all calls have
    ended."""

    launch: Callable[[AnyRecorder], None]
    num_wrong: Callable[[], int]


@dataclass(frozen=True)
class Work:
    """What to run: `make_case(i)` makes call number i."""

    plan: LocalPlan
    make_case: Callable[[int], Case]
    label: str


def run(
    name: str, make_work: Callable[[str], Work], target: str, repeats: int, graph: bool
) -> None:
    """Run a warm-up, then `repeats` recorded calls, and check all of them.

    Exits non-zero for bad options or a wrong value.
    """
    with errors_in_one_line(name, TypeError, BlockTimeoutError):
        device = choose_device(target)
        if graph and device == "cpu":
            raise ValueError("--graph captures calls on a GPU; leave it out on the CPU target")
        if repeats < 1:
            raise ValueError(f"--repeats takes 1 or more, got {repeats}")
        num_wrong = _run(name, make_work(device), repeats, graph)
    if num_wrong:
        raise typer.Exit(1)


def _run(name: str, work: Work, repeats: int, graph: bool) -> int:
    import kprof

    plan = work.plan
    recorder = kprof.recorder(device=plan.device)
    # The first call has page faults and lazy loading, which should not be in the recording.
    warm_up = work.make_case(0)
    warm_up.launch(NullRecorder())
    if recorder.is_recording:
        plan.prepare_recording()
    cases = [work.make_case(number) for number in range(1, repeats + 1)]
    recorder.align(SoloGroup())
    go = _captured(cases, recorder) if graph else lambda: _launch_all(cases, recorder)
    plan.wait()
    begin = time.perf_counter()
    go()
    plan.wait()
    elapsed_s = time.perf_counter() - begin
    recorder.align(SoloGroup())
    num_wrong = warm_up.num_wrong() + sum(case.num_wrong() for case in cases)
    typer.echo(
        f"{name} on {plan.device.split(':')[0]}: {work.label}, {repeats} calls, "
        f"{1e6 * elapsed_s / repeats:.1f} us a "
        f"call on the host's clock, {num_wrong} wrong values"
    )
    return num_wrong


def _launch_all(cases: Sequence[Case], recorder: AnyRecorder) -> None:
    for case in cases:
        case.launch(recorder)


def _captured(cases: Sequence[Case], recorder: AnyRecorder) -> Callable[[], Any]:
    import torch

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _launch_all(cases, recorder)
    return graph.replay
