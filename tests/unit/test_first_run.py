"""`kprof doctor --first-run` where something fails. tests/kernels/test_first_run.py has what it asks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kprof.doctor import first_run
from kprof.doctor.checks import Check
from kprof.doctor.first_run import FirstRun
from kprof_cli import first_run as first_run_of_collectives
from kprof_cli.main import app


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_run, "LIMIT_S", 600.0)


@pytest.mark.slow
def test_a_kernel_that_the_host_never_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FirstRun, "_answer", lambda self, words, mark: None)
    monkeypatch.setattr(first_run, "_until", lambda words, value: False)
    checks = {check.name: check for check in FirstRun("cpu").checks()}
    flags = checks["flags between kernel and host"]
    assert not flags.is_ok
    assert flags.found.startswith("a store at system scope did not reach the host")
    assert checks["memory that peers write"].is_ok


def test_what_cannot_be_asked_does_not_keep_the_next_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(device: str) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(first_run, "measure_clock", refuse)
    checks = {check.name: check for check in FirstRun("cpu").checks()}
    assert checks["clock"].found == "the device is gone"
    assert checks["memory that peers write"].is_ok


def test_the_command_fails_where_a_collective_does(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Check("all_reduce ring, 2 ranks", False, "3 values are wrong", "")
    monkeypatch.setattr(FirstRun, "checks", lambda self: iter([Check("device", True, "CPU", "")]))
    monkeypatch.setattr(first_run_of_collectives, "collectives", lambda device: iter([wrong]))
    answer = CliRunner().invoke(app, ["doctor", "--first-run", "--device", "cpu"])
    assert answer.exit_code == 1
    assert "3 values are wrong" in answer.output


@pytest.mark.slow
def test_ranks_are_quoted_and_one_that_fails_does_not_keep_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variants = {"all_reduce": ("fastest",), "all_to_all": ("fused",)}
    monkeypatch.setattr(first_run_of_collectives, "_VARIANTS", variants)
    memory, failed, right = first_run_of_collectives.collectives("cpu")
    assert (memory.is_ok, memory.found) == (True, "2 processes wrote to each other's memory")
    assert (right.is_ok, right.name) == (True, "all_to_all fused, 2 ranks")
    assert right.found.endswith("0 wrong values")
    assert not failed.is_ok
    assert "'fastest'" in failed.found


def test_ranks_that_torchrun_leaves_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchrun = tmp_path / "python"
    torchrun.write_text("#!/bin/sh\nsleep 1000 > /dev/null 2>&1 &\necho $!\n")
    torchrun.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(torchrun))
    answer = first_run_of_collectives._run(2, "shared_memory")
    assert answer is not None
    left = Path(f"/proc/{int(answer.stdout)}/stat")
    # Killed, and perhaps not yet waited for by its new parent.
    while left.exists() and left.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        os.sched_yield()
