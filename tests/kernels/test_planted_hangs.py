"""Mistakes planted in an exchange between ranks: the root is named, and a slow run is not called hung.

benchmarks/planted_hangs.py does the same with 50 seeds of each.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kprof.hangs.report import describe
from planted_hangs.world import PLANTED, Case, Fault, find_root, reports_of_slow_run, root_of


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name.lower())
def test_the_root_is_named(fault: Fault, seed: int, tmp_path: Path) -> None:
    case = Case.draw(fault, seed)
    root, run = root_of(case, tmp_path / "run")
    assert case.is_named_by(root), (case, root and describe(root, run))


def test_the_watch_reports_a_run_that_stands(tmp_path: Path) -> None:
    finding = find_root(Case.draw(Fault.NEVER_LAUNCHES, 7), tmp_path / "run")
    assert finding is not None
    assert finding.is_complete
    assert finding.hang.diagnosis.endswith("its Python stack stands at exchange.py:1 in main")
    assert all(wait.age_s > 60 for wait in finding.hang.waits)


@pytest.mark.parametrize("seed", [0, 2, 5])
def test_a_slow_run_is_not_called_hung(seed: int, tmp_path: Path) -> None:
    """Of the three, one has a slow host and two a kernel that takes long."""
    assert reports_of_slow_run(Case.draw(Fault.SLOW, seed), tmp_path / "run") == []
