"""`kprof doctor --first-run`, on the CPU target."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from kprof.devices.doctor import Check
from kprof.recording.rank import first_run
from kprof.recording.rank.first_run import FirstRun
from kprof_cli import first_run as first_run_of_collectives
from kprof_cli.main import app

# Goes by the scheduler of a machine that may be busy.
TIMED = "clock rate against the host"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_run, "LIMIT_S", 600.0)


def test_every_question_has_an_answer() -> None:
    checks = {check.name: check for check in FirstRun("cpu").checks()}
    assert [check for name, check in checks.items() if not check.is_ok and name != TIMED] == []
    assert "100 rounds" in checks["flags between kernel and host"].found
    assert "copy beside the kernel saw its store" in checks["flags between kernel and host"].found
    assert "4 blocks met" in checks["processors and their clocks"].found


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
