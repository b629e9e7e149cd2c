"""Mistakes planted in an exchange between ranks: the root is named, and a slow run is not called hung.

benchmarks/planted_hangs.py does the same with 50 seeds of each.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kprof.hangs.asking import Answers
from kprof.hangs.diagnosis import Diagnosis
from kprof.hangs.evidence import with_records
from kprof.hangs.hosts import diagnose_hosts
from kprof.hangs.look import note_hang
from kprof.hangs.report import describe, lines_of, make_report, read_hang
from kprof.hangs.state import Condition, RunState
from planted_hangs.world import (
    PLANTED,
    Case,
    Fault,
    find_root,
    reports_of_slow_run,
    root_of,
    running,
)


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.amd), 1])
@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name.lower())
def test_the_root_is_named(fault: Fault, seed: int, tmp_path: Path) -> None:
    case = Case.draw(fault, seed)
    root, run = root_of(case, tmp_path / "run")
    assert case.is_named_by(root), (case, root and describe(root, run))


def test_what_is_about_to_be_killed_is_looked_at_and_kept(tmp_path: Path) -> None:
    """As Ctrl-C does, twice: before `--hang-after` has passed."""
    case = Case.draw(Fault.EQUAL, 1)
    with running(case, tmp_path / "run") as world:
        assert note_hang(tmp_path) == ""
        world.wait_until_nothing_moves()
        world.answers()
        diagnosis = note_hang(world.directory)
        assert "which the flag has passed: compare with >=, not with ==" in diagnosis
        hang = read_hang(world.directory)
        assert hang is not None
        assert hang.diagnosis == diagnosis
        # A report that is there stays.
        assert note_hang(world.directory) == ""


def test_the_watch_reports_a_run_that_stands(tmp_path: Path) -> None:
    hang = find_root(Case.draw(Fault.NEVER_LAUNCHES, 7), tmp_path / "run")
    assert hang is not None
    assert all(rank.stack for rank in hang.ranks if rank.condition is Condition.RUNNING)
    assert hang.diagnosis.endswith("its Python code is at exchange.py:1 in main")
    assert all(wait.age_s > 60 for wait in hang.waits)


@pytest.mark.parametrize("seed", [0, 2, 5])
def test_a_slow_run_is_not_called_hung(seed: int, tmp_path: Path) -> None:
    """Of the three, one has a slow host and two a kernel that takes long."""
    assert reports_of_slow_run(Case.draw(Fault.SLOW, seed), tmp_path / "run") == []


def test_a_kernel_that_does_not_say_that_it_waits_is_known_by_its_last_event(
    tmp_path: Path,
) -> None:
    """The rank at fault makes its first call, and not the second."""
    case = replace(Case.draw(Fault.NEVER_LAUNCHES, 7), faulty_call=1, num_calls=3)
    with running(case, tmp_path / "run") as world:
        world.wait_until_nothing_moves()
        world.answers()
        run = with_records(world.directory, world.source.read(frozenset(), Answers(), 0.0))
    quiet = {rank: replace(state, waits=()) for rank, state in run.ranks.items()}
    hang = make_report(RunState(quiet), Diagnosis(), 60.0)
    last = hang.ranks[case.culprit].last_event
    assert re.fullmatch(r"(send|wait) of block \d.* of rank \d in call 0 of exchange", last), last
    assert f"; last event: {last}" in "\n".join(lines_of(hang))
    assert "and not call 1 of exchange" in diagnose_hosts(RunState(quiet))
