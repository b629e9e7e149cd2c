"""GPU runs in one command: they go on after a part that fails, and what they record exists."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import shutil
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_runs, recordings
from benchmarks.runs import Runs


def test_a_part_that_fails_ends_nothing(tmp_path: Path) -> None:
    run = Runs(tmp_path, limit_s=60.0)
    run("wrong", ["-c", "raise SystemExit('no such thing')"])
    assert run("right", ["-c", "print(6 * 7)"]) == "42\n"
    assert [line.split(",")[0] for line in run.lines] == [
        "wrong: exit code 1",
        "right: exit code 0",
    ]
    assert (tmp_path / "wrong.txt").read_text() == "no such thing\n"


def test_what_takes_too_long_is_ended(tmp_path: Path) -> None:
    run = Runs(tmp_path, limit_s=60.0, total_s=0.0)
    run("slow", ["-c", "import time; time.sleep(1000)"])
    assert run.lines[0].startswith("slow: exit code none after")


def parsed(module: str, options: Sequence[str]) -> dict[str, Any]:
    """The options as the workload understands them."""
    import typer

    command = typer.main.get_command(importlib.import_module(f"{module}.__main__").app)
    return command.make_context(module, list(options)).params


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_recordings_are_of_every_step_of_the_ladders(target: str) -> None:
    found = set()
    for name in recordings.steps():
        python, _, module, *options = recordings.command_of(name, target)
        known = parsed(module, options)
        assert python == "python"
        assert known["graph"] == (target == "cuda")
        found.add((module.split(".")[-1], known["variant"]))
    for kernel in recordings.REPEATS:
        plan = importlib.import_module(f"instrumented_kernels.{kernel}.plan")
        assert {variant for of, variant in found if of == kernel} == set(plan.VARIANTS)


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_recordings_of_several_ranks_are_of_workloads_that_exist(target: str) -> None:
    names = recordings.steps(num_ranks=2)
    assert len(set(names)) == len(names)
    for name in names:
        _, _, module, *options = recordings.command_of(name, target)
        kernel, _, variant = name.partition("-")
        assert module == f"instrumented_kernels.{kernel}"
        assert parsed(module, options)["variant"] == variant


@pytest.mark.slow
def test_a_ladder_has_each_promise_beside_the_next_step() -> None:
    traces = Path(__file__).parents[2] / "traces"
    names = ("token_flags", "balanced")
    first, last = recordings.ladders(
        [traces / f"all_to_all-{name}-4xH200-skew3.kprof" for name in names]
    )
    assert first["gained"] == pytest.approx(1 - last["call_us"] / first["call_us"], abs=0.001)
    assert first["gained"] > 0
    # What the headline says: "combine/reduce runs on only 11-32 of 132 blocks; up to 15 %".
    assert first["promised"] == pytest.approx(0.15, abs=0.005)
    assert "gained" not in last


@pytest.mark.parametrize("part", gpu_runs.PARTS)
def test_parts_of_a_run_on_gpus_are_modules_that_exist(part: str, tmp_path: Path) -> None:
    for target in ("cuda", "cpu"):
        for _, arguments in gpu_runs.commands(part, tmp_path, target):
            modules = [name for option, name in pairwise(arguments) if option == "-m"]
            assert all(importlib.util.find_spec(name) for name in modules if name != "gpu")


def test_a_recording_is_kept_with_its_entry_in_the_index(tmp_path: Path) -> None:
    tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    traces = Path(__file__).parents[2] / "traces"
    shutil.copytree(
        traces / "all_reduce-oneshot_serial-4xH200.kprof", tmp_path / "skinny_gemm-tiled.kprof"
    )
    run = Runs(tmp_path, limit_s=60.0)
    out = tmp_path / "out"
    out.mkdir()
    entries = tomllib.loads(recordings.keep(run, "skinny_gemm-tiled", out))
    (path,) = out.iterdir()
    entry = entries.pop(path.name)
    assert not entries
    assert path.name == "skinny_gemm-tiled-4xH200.kprof"
    assert entry["kernel"] == "instrumented_kernels/skinny_gemm, variant tiled"
    assert entry["shows"].startswith("1 block does all the work")
    assert entry["sha256"] == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()
    }
