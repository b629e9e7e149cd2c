"""The table of faults that `make amd-faults` plants in device code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "amd"))
import weak  # noqa: E402
from mutations import FAULTS, READ_WHILE_RUNNING  # noqa: E402


def test_every_fault_has_one_place() -> None:
    places = {fault.name: (ROOT / fault.path).read_text().count(fault.old) for fault in FAULTS}
    assert {name: count for name, count in places.items() if count != 1} == {}
    assert len(places) == len(FAULTS) >= 40


def test_every_quarter_of_the_tests_runs_once_in_one_memory_with_one_seed() -> None:
    strict, *runs = weak.runs_of(7)
    assert strict.arguments[1:] == READ_WHILE_RUNNING
    assert strict.settings["EMU_K_SLOW"] == "0"
    assert sorted(run.settings["KPROF_TEST_PART"] for run in runs) == ["0/4", "1/4", "2/4", "3/4"]
    assert [run.settings["WEAK_HEAP"] for run in runs] == ["uc", "fg", "uc", "fg"]
    assert len({run.settings["EMU_SEED"] for run in runs}) == 4


def test_a_failure_is_printed_as_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    failed = ["tests/kernels/test_all_reduce.py::test_any_grid[ring-3]"]
    weak.Run({"EMU_SEED": "7"}, ("-n", "2", "tests/kernels"), failed=failed).tell(Path("/emulator"))
    command = capsys.readouterr().out.splitlines()[1].split()
    assert command[0] == "EMU_SEED=7"
    assert "/emulator/weak/run-pytest" in command
    assert f"'{failed[0]}'" in command
