"""Whether a process of this host still runs, and who has its number now."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from kprof.capture.directory import pids_here, write_rank_started
from kprof.capture.manifest import RankStarted
from kprof.capture.processes import Condition, Process, process_of


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a_process_runs_is_stopped_and_ends(child: subprocess.Popen[bytes]) -> None:
    process = process_of(child.pid)
    assert process.condition() is Condition.RUNNING
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    assert process.condition() is Condition.STOPPED
    child.kill()
    # Nobody has waited for it yet: a zombie.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.condition() is Condition.ENDED
    child.wait()
    assert process.condition() is Condition.ENDED


def test_who_has_the_number_of_a_process_later_is_another(child: subprocess.Popen[bytes]) -> None:
    process = process_of(child.pid)
    other = replace(process, start_ticks=process.start_ticks + 1)
    assert other.condition() is Condition.ENDED


def test_of_a_process_elsewhere_nothing_is_known() -> None:
    gone = Process("another host", 1 << 30, 0, 1)
    other_container = Process(socket.gethostname(), 1 << 30, 1, 1)
    for process in (gone, other_container):
        assert not process.is_here
        assert process.condition() is Condition.RUNNING


def test_a_rank_is_not_looked_for_in_another_process(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    """Signals that kprof sends end whoever does not expect them."""
    mine = process_of(child.pid)
    taken = replace(mine, start_ticks=mine.start_ticks + 1)
    elsewhere = replace(mine, namespace=1)
    for rank, process in enumerate((mine, taken, elsewhere)):
        write_rank_started(tmp_path, RankStarted(rank, 3, *astuple(process)))
    assert pids_here(tmp_path, range(3)) == {0: child.pid}
