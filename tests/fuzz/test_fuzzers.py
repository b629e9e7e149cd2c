"""A small share of each fuzzer, the same in every run, and what the harness itself must find.

`python tests/fuzz/recordings.py --help` says how to run more.
"""

from __future__ import annotations

import os
from pathlib import Path

import harness
import imports
import numpy as np
import pytest
import recordings
from harness import Case, run_cases

import wait_lines


@pytest.mark.slow
@pytest.mark.parametrize(("case", "count"), [(imports.case, 60), (wait_lines.case, 40)])
def test_a_share_of_each_fuzzer(case: Case, count: int) -> None:
    result = run_cases(case, "script.py", count, seed=2026)
    assert result.failures == []
    assert result.words.total() == count
    assert len(result.words) > 3


@pytest.mark.slow
def test_what_killed_ranks_left_is_recovered_or_refused() -> None:
    result = run_cases(recordings.case, "script.py", 36, seed=2026, prepare=recordings.prepare)
    assert result.failures == []
    assert any("recovered" in word for word in result.words)


def failure_of(case: Case) -> str:
    result = run_cases(case, "script.py", 1, seed=5)
    return "".join(result.failures)


def raw(seed: int, number: int, folder: Path) -> str:
    raise IndexError("of the code under test")


def sentence(seed: int, number: int, folder: Path) -> str:
    (folder / "made").write_text("in its folder")
    (folder / "made").rename(folder / "moved")
    return "fine"


def outside_write(seed: int, number: int, folder: Path) -> str:
    (folder.parent / "elsewhere").write_text("outside")
    return "fine"


def outside_removal(seed: int, number: int, folder: Path) -> str:
    link = folder / "link"
    link.symlink_to(folder.parent / "private")
    (link / "secret.txt").unlink()
    return "fine"


def outside_signal(seed: int, number: int, folder: Path) -> str:
    os.kill(os.getpid(), 0)
    return "fine"


def endless(seed: int, number: int, folder: Path) -> str:
    while True:
        np.zeros(1)


def pipe(seed: int, number: int, folder: Path) -> str:
    os.mkfifo(folder / "pipe")
    return (folder / "pipe").read_text()


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (raw, "IndexError: of the code under test"),
        (outside_write, "touched outside of its folder: ['open: "),
        (outside_removal, "touched outside of its folder: ['os.remove: "),
        (outside_signal, "touched outside of its folder: ['os.kill("),
        (endless, "s of processor time"),
        (pipe, "s of clock time"),
    ],
)
def test_the_harness_sees_what_it_looks_for(
    case: Case, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "CPU_S", 0.3)
    monkeypatch.setattr(harness, "HANG_S", 3.0 if case is pipe else 600.0)
    failure = failure_of(case)
    assert failure.startswith("python script.py --seed 5 --only 0\n")
    assert said in failure


def test_what_is_as_it_should_be_is_no_failure() -> None:
    assert failure_of(sentence) == ""
