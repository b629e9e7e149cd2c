"""What `kprof doctor --first-run` asks of a device: of the CPU target, and of gfx942 machine code."""

from __future__ import annotations

import ctypes
import sys

import pytest
from widths import IS_CPU_TARGET

from kprof.doctor import first_run
from kprof.doctor.first_run import FirstRun

pytestmark = pytest.mark.amd

# Goes by the scheduler of a machine that may be busy, and in an emulator by a clock of its own.
TIMED = "clock rate against the host"
# Two compute units in each of the eight XCDs.
NUM_PROCESSORS = 16


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_run, "LIMIT_S", 600.0)


@pytest.fixture(autouse=True)
def processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the emulator's runtime says of the GPU."""
    if not IS_CPU_TARGET:
        count = ctypes.c_int.in_dll(sys.modules["gfx942"].mock, "mock_cus")
        monkeypatch.setattr(count, "value", NUM_PROCESSORS)


def test_every_question_has_an_answer() -> None:
    checks = {check.name: check for check in FirstRun("cpu").checks()}
    assert [check for name, check in checks.items() if not check.is_ok and name != TIMED] == []
    assert "100 rounds" in checks["flags between kernel and host"].found
    assert "copy beside the kernel saw its store" in checks["flags between kernel and host"].found
    met = "4 blocks met" if IS_CPU_TARGET else "16 blocks met on 16 processors of 16, 8 chiplets"
    assert met in checks["processors and their clocks"].found
    if not IS_CPU_TARGET:
        assert "100 MHz, steps of 10 ns" in checks["clock"].found
