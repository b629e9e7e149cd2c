"""GPU runs in one command: they go on after a part that fails, and what they record exists."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarks.runs import Runs
from benchmarks.single_gpu_runs import CAPTURES, KERNELS, PARTS, STEPS, TEST_FILE, workload


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


@pytest.mark.parametrize("name", CAPTURES)
def test_captures_are_of_workloads_that_exist(name: str) -> None:
    """Every option is one that the workload has."""
    import typer

    _, module, *options = workload(name)
    command = typer.main.get_command(importlib.import_module(f"{module}.__main__").app)
    known = command.make_context(module, [*options, "--target", "cuda", "--graph"]).params
    assert known["graph"]
    assert known["target"] == "cuda"


def test_every_test_on_gpus_is_in_one_part() -> None:
    """pytest's -k by the names of workloads, as the parts have them."""
    text = (Path(__file__).parents[2] / TEST_FILE).read_text()
    assert all(f'"{kernel} ' in text or f'f"{kernel} ' in text for kernel in KERNELS)
    assert all(f'"{step}"' in text for step in STEPS)
    assert len(PARTS) == len(STEPS) + len(KERNELS)
