"""Whether a process of this host still runs, and who has its number now."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from kprof.capture.journal import say
from kprof.capture.manifest import RankStarted
from kprof.capture.names import rank_file
from kprof.capture.processes import (
    Condition,
    Process,
    environment_of,
    process_of,
    signal_all,
)
from kprof.capture.started import pids_here


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


def test_the_environment_of_a_process_that_becomes_another_program_is_waited_for(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a moment /proc has none: of 300 programs that were just started it was once empty, for 11 ms."""
    read_bytes, read_text = Path.read_bytes, Path.read_text
    looks: list[Path] = []

    def read_nothing(path: Path) -> bytes:
        looks.append(path)
        return b"" if len(looks) <= 3 else read_bytes(path)

    def read_no_addresses(path: Path, **how: str) -> str:
        fields = read_text(path, **how).split()
        return " ".join([*fields[:47], "0", "0", "0", "0", *fields[51:]])

    monkeypatch.setattr(Path, "read_bytes", read_nothing)
    monkeypatch.setattr(Path, "read_text", read_no_addresses)
    assert f"PATH={os.environ['PATH']}".encode() in environment_of(child.pid)


def test_a_process_may_have_no_environment() -> None:
    with subprocess.Popen(["sleep", "600"], env={}) as process:
        assert environment_of(process.pid) == [b""]
        process.kill()
    with pytest.raises(FileNotFoundError):
        environment_of(process.pid)


_MAPS_A_FILE = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as file:
    page = mmap.mmap(file.fileno(), 4096)
print("mapped", flush=True)
time.sleep(600)
"""


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A directory and a process that has a claim on its rank 0."""
    directory = tmp_path / "run.kprof.unfinished"
    directory.mkdir()
    live = rank_file(directory, 0, "live")
    live.write_bytes(bytes(4096))
    command = [sys.executable, "-c", _MAPS_A_FILE, str(live)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"mapped\n"
        yield directory, process.pid
        process.kill()


def test_a_rank_is_not_looked_for_in_another_process(
    recording: tuple[Path, int], child: subprocess.Popen[bytes]
) -> None:
    """Signals that kprof sends end whoever does not expect them."""
    directory, pid = recording
    mine = process_of(pid)
    others = (
        replace(mine, start_ticks=mine.start_ticks + 1),
        replace(mine, start_ticks=0),
        replace(mine, namespace=1),
        # Somebody's process: a file in the directory names it, and it has nothing to do with it.
        process_of(child.pid),
        process_of(os.getpid()),
        process_of(1),
    )
    for rank, process in enumerate((mine, *others)):
        if rank:
            shutil.copy(rank_file(directory, 0, "live"), rank_file(directory, rank, "live"))
        say(directory, rank, RankStarted(rank, 7, *astuple(process)))
    assert pids_here(directory, range(7)) == {0: pid}


def test_a_copy_of_a_recording_leads_to_no_process(
    recording: tuple[Path, int], tmp_path: Path
) -> None:
    directory, pid = recording
    say(directory, 0, RankStarted(0, 1, *astuple(process_of(pid))))
    copy = Path(shutil.copytree(directory, tmp_path / "copy"))
    assert pids_here(directory, [0]) == {0: pid}
    assert pids_here(copy, [0]) == {}


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGUSR1, signal.SIGSEGV, 0, 64])
def test_only_signals_of_ours_are_sent(number: int, child: subprocess.Popen[bytes]) -> None:
    with pytest.raises(AssertionError):
        signal_all([child.pid], number)
