"""The two builds of a kernel source: which one a launch runs, when each is compiled, and that ranks
may differ in it.

The CPU target has one build for both, so that these tests stand in for a GPU by compiling its two
builds for the CPU.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ranks import Run
from thread_ranks import ThreadGroup, run_threads

from instrumented_kernels.all_to_all import Plan, Problem
from instrumented_kernels.all_to_all.routing import count_wrong, make_inputs, reference
from instrumented_kernels.kernel_library import KernelLibrary
from kprof.devices.build import BuildOptions, build_library
from kprof.devices.groups import SoloGroup
from kprof.devices.targets import Target
from kprof.recording.launcher.record import session
from kprof.recording.launches.launch_buffer import LaunchBuffer
from kprof.recording.rank.null_recorder import AnyRecorder, NullRecorder
from kprof.recording.rank.recorder import Recorder
from kprof.trace import Trace

SMALL = Problem(num_experts=8, top_k=3, hidden=40, max_tokens=6)
VARIANTS = ["rank_flags", "token_flags", "fused", "balanced", "pipelined"]
WITHOUT_KPROF = ("KPROF_ENABLED", "0")


class CountingRecorder(NullRecorder):
    """Is told of every launch and records nothing."""

    is_recording = True

    def __init__(self) -> None:
        self.kernels: list[str] = []

    def launch(self, kernel: str, *arguments: object, **geometry: object) -> LaunchBuffer:
        self.kernels.append(kernel)
        return LaunchBuffer(0, 0)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The builds that plans for a GPU have loaded, in order."""
    names: list[str] = []
    load = Plan._load

    def load_for_cpu(options: BuildOptions) -> KernelLibrary:
        library = load(replace(options, target=Target.CPU))
        library.is_plain = WITHOUT_KPROF in options.defines
        names.append("plain" if library.is_plain else "instrumented")
        return library

    monkeypatch.setattr(Plan, "_load", staticmethod(load_for_cpu))
    return names


def gpu_plan(**named: object) -> Plan:
    options = replace(Run(SMALL, 1).options(), target=Target.CUDA)
    arguments: dict[str, object] = {"variant": "fused", "grid": 2, "warps_per_block": 2}
    return Plan(SoloGroup(), SMALL, options=options, **(arguments | named))  # type: ignore[arg-type]


def is_right(plan: Plan, recorder: AnyRecorder | None = None) -> bool:
    inputs = make_inputs(SMALL, 5, 1)
    out = plan(inputs.x, inputs.indices, inputs.weights, recorder=recorder)
    return count_wrong(out, reference(SMALL, inputs, 1)) == 0


def open_recorder(directory: Path) -> Recorder:
    return Recorder(directory, rank=0, world_size=1, arena_bytes=1 << 20)


def test_who_never_records_never_compiles_the_instrumented_build(loaded: list[str]) -> None:
    plan = gpu_plan()
    assert is_right(plan)
    assert is_right(plan, NullRecorder())
    assert loaded == ["plain"]


def test_a_recorder_that_records_nothing_is_told_and_runs_the_plain_build(
    loaded: list[str],
) -> None:
    recorder = CountingRecorder()
    assert is_right(gpu_plan(), recorder)
    assert recorder.kernels[0] == "all_to_all/dispatch_send"
    assert len(recorder.kernels) == 4
    assert loaded == ["plain"]


def test_a_recorder_that_comes_later_records_and_may_leave_again(
    loaded: list[str], tmp_path: Path
) -> None:
    plan = gpu_plan()
    assert is_right(plan)
    with session(tmp_path / "run.kprof") as directory:
        recorder = open_recorder(directory)
        assert is_right(plan, recorder)
        assert is_right(plan)
        assert is_right(plan, recorder)
        recorder.close()
    assert loaded == ["plain", "instrumented"]
    trace = Trace.open(tmp_path / "run.kprof")
    sends = trace.frame("SELECT count(*) AS n FROM events WHERE region = 'dispatch/send'")
    assert sends["n"][0] == 2 * 5 * SMALL.top_k


def test_recording_can_be_prepared_before_a_recorder_comes(loaded: list[str]) -> None:
    plan = gpu_plan()
    plan.prepare_recording()
    assert loaded == ["plain", "instrumented"]
    assert is_right(plan)


def test_both_builds_are_there_at_once_where_somebody_records(
    loaded: list[str], tmp_path: Path
) -> None:
    with session(tmp_path / "run.kprof") as directory:
        recorder = open_recorder(directory)
        plan = gpu_plan()
        assert sorted(loaded) == ["instrumented", "plain"]
        assert is_right(plan, recorder)
        recorder.close()
    assert len(loaded) == 2


def test_a_grid_too_large_for_the_instrumented_build_is_refused_and_costs_no_epoch(
    loaded: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not loaded
    plan = gpu_plan()
    limit = KernelLibrary.max_resident_blocks

    def fewer_with_records(library: KernelLibrary, *shape: int) -> int:
        return limit(library, *shape) if library.is_plain else 1

    with session(tmp_path / "run.kprof") as directory:
        recorder = open_recorder(directory)
        monkeypatch.setattr(KernelLibrary, "max_resident_blocks", fewer_with_records)
        with pytest.raises(ValueError, match=r"2 blocks of 64 threads .* \(at most 1\)"):
            is_right(plan, recorder)
        assert is_right(plan)
        assert plan._epoch == 1
        assert gpu_plan(grid=None).grid == 1
        recorder.close()


@pytest.mark.amd
@pytest.mark.parametrize("variant", VARIANTS)
def test_ranks_with_and_without_a_recorder_understand_each_other(
    variant: str, tmp_path: Path
) -> None:
    """Rank 0 runs the instrumented build and records, rank 1 the plain one, over calls of both parities."""
    run = Run(SMALL, 2, variant)

    def work(group: ThreadGroup) -> int:
        records = group.rank == 0
        defines = () if records else (WITHOUT_KPROF,)
        plan = Plan(group, SMALL, variant=variant, options=replace(run, defines=defines).options())
        recorder = open_recorder(directory) if records else NullRecorder()
        wrong = 0
        for call in range(3):
            inputs = run.inputs_of(group.rank, call)
            out = torch.full_like(inputs.x, float("nan"))
            plan(inputs.x, inputs.indices, inputs.weights, out=out, recorder=recorder)
            wrong += count_wrong(out, reference(SMALL, inputs, 2))
        recorder.close()
        plan.close()
        return wrong

    with session(tmp_path / "run.kprof") as directory:
        assert run_threads(2, work) == [0, 0]
    trace = Trace.open(tmp_path / "run.kprof")
    calls = trace.frame("SELECT count(DISTINCT launch) AS n, min(rank) AS r FROM events")
    assert calls["n"][0] >= 3
    assert calls["r"][0] == 0


def test_a_compiler_gets_nothing_preloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is preloaded here is the runtime of a sanitizer, with which it would take twice as long."""
    environments = []

    def compile_nothing(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        environments.append(options["env"])
        Path(command[command.index("-o") + 1]).touch()
        Path(command[command.index("-MF") + 1]).write_text(f"library: {tmp_path}/kernel.hip\n")
        return subprocess.CompletedProcess(command, 0, "", "")

    (tmp_path / "kernel.hip").write_text("")
    monkeypatch.setenv("LD_PRELOAD", "")
    compiler = SimpleNamespace(run=compile_nothing)
    monkeypatch.setattr("kprof.devices.build.subprocess", compiler)
    build_library(tmp_path / "kernel.hip", BuildOptions(Target.CPU))
    (environment,) = environments
    assert "LD_PRELOAD" not in environment
