"""Runs calls of a kernel back to back: a workload for `kprof record`, for torchrun, or alone.

Checks the results, and times the calls on the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import typer

from instrumented_kernels.call_ledger import PeerError
from instrumented_kernels.device_plan import DevicePlan
from instrumented_kernels.local_plan import BlockTimeoutError
from instrumented_kernels.workload import choose_device, errors_in_one_line
from kprof.devices.groups import Group, SoloGroup
from kprof.devices.on_use import torch
from kprof.recording.rank.null_recorder import AnyRecorder, NullRecorder


@dataclass(frozen=True)
class Case:
    """One call and its check. `launch` takes `recorder`; call `num_wrong` after all calls have
    ended."""

    launch: Callable[..., object]
    num_wrong: Callable[[], int]


@dataclass(frozen=True)
class Work:
    """What to run: `make_case(i)` makes call number i; number 0 warms up.

    `label` says what they compute. `name` is the kernel's, by default the command's; `whose` says
    whose time is printed, where there are several ranks. `prepare_recording` is by default the
    plan's.
    """

    plan: DevicePlan
    make_case: Callable[[int], Case]
    label: str
    name: str = ""
    whose: str = ""
    prepare_recording: Callable[[], object] | None = None


def run(
    command: str,
    make_work: Callable[[str, Group], Work],
    target: str,
    repeats: int,
    graph: bool,
    joined: AbstractContextManager[Group] | None = None,
) -> None:
    """Run a warm-up, then `repeats` recorded calls, and check all of them.

    `make_work` takes the device and the group of ranks, by default this process alone. Exits
    non-zero for bad options or a wrong value.
    """
    with errors_in_one_line(command, TypeError, BlockTimeoutError, PeerError):
        device = choose_device(target)
        if graph and device == "cpu":
            raise ValueError("--graph captures calls on a GPU; leave it out on the CPU target")
        if repeats < 1:
            raise ValueError(f"--repeats takes 1 or more, got {repeats}")
        with joined or nullcontext(SoloGroup()) as group:
            num_wrong = _run(command, make_work(device, group), group, repeats, graph)
    if num_wrong:
        raise typer.Exit(1)


def _run(command: str, work: Work, group: Group, repeats: int, graph: bool) -> int:
    """The number of wrong values on all ranks, so that all exit alike."""
    import kprof

    plan = work.plan
    recorder = kprof.recorder(device=plan.device)
    # The first call has page faults and lazy loading, which should not be in the recording.
    warm_up = work.make_case(0)
    warm_up.launch(recorder=NullRecorder())
    if recorder.is_recording:
        (work.prepare_recording or plan.prepare_recording)()
    cases = [work.make_case(number) for number in range(1, repeats + 1)]
    recorder.align(group)
    go = _captured(cases, recorder) if graph else lambda: _launch_all(cases, recorder)
    plan.wait()
    group.barrier()
    begin = time.perf_counter()
    go()
    plan.wait()
    own_us = 1e6 * (time.perf_counter() - begin) / repeats
    recorder.align(group)
    own_wrong = sum(case.num_wrong() for case in (warm_up, *cases))
    times_us, all_wrong = zip(*group.all_gather((own_us, own_wrong)), strict=True)
    num_wrong: int = sum(all_wrong)
    if group.rank == 0:
        target = plan.device.split(":")[0]
        typer.echo(
            f"{work.name or command} on {target}: {work.label}, {repeats} calls, {work.whose}"
            f"{max(times_us):.1f} us a call on the host's clock, {num_wrong} wrong values"
        )
    return num_wrong


def _launch_all(cases: Sequence[Case], recorder: AnyRecorder) -> None:
    for case in cases:
        case.launch(recorder=recorder)


def _captured(cases: Sequence[Case], recorder: AnyRecorder) -> Callable[[], Any]:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _launch_all(cases, recorder)
    return graph.replay
