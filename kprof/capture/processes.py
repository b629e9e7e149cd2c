"""Processes of this host: whether one still runs, signals for them, and waiting for them.

A later process with the same number is another one. Where /proc does not tell, a process is taken
to run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

# No library takes the last real-time signals. Only processes that have opened a file for their
# stacks get the first, and only those that say so in their memory the second.
STACKS_SIGNAL: Final = signal.SIGRTMAX - 2
SAVE_SIGNAL: Final = signal.SIGRTMAX - 3
_SIGNALS_TO_RANKS: Final = frozenset(
    (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, STACKS_SIGNAL, SAVE_SIGNAL)
)
_POLL_S: Final = 0.02
# Starting a program takes a moment, unless its file lies on a disk that does not answer.
_START_TIMEOUT_S: Final = 2.0


class Condition(str, Enum):
    """What has become of a process."""

    RUNNING = "running"
    STOPPED = "stopped"
    ENDED = "ended"


@dataclass(frozen=True)
class Process:
    """A process: its number in a namespace of a host, and when it started (0: not known)."""

    host: str
    pid: int
    namespace: int
    start_ticks: int

    @property
    def is_here(self) -> bool:
        """Whether `pid` means this process for us, too."""
        return self.host == socket.gethostname() and self.namespace in (0, own_namespace("pid"))

    def maps(self, file: Path) -> bool:
        """Whether it runs here, is this user's, and has mapped this very file.

        Only a process that records a rank maps the file of its claim, whatever other files say
        of it. Where /proc does not tell, it has not.
        """
        if not self.is_here or not self.start_ticks or self.condition() is Condition.ENDED:
            return False
        try:
            status = file.stat()
            is_ours = Path(f"/proc/{self.pid}").stat().st_uid == os.geteuid()
            mapped = Path(f"/proc/{self.pid}/maps").read_text(errors="surrogateescape")
        except OSError:
            return False
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        return is_ours and any(
            _is_of(line.split(None, 5), device, status.st_ino, os.path.realpath(file))
            for line in mapped.splitlines()
        )

    def condition(self) -> Condition:
        """What has become of it; of one that is elsewhere nobody knows."""
        if not self.is_here or not Path("/proc/self/stat").exists():
            return Condition.RUNNING
        stat = _read_stat(self.pid)
        if stat is None:
            return Condition.ENDED
        is_another = self.start_ticks and self.start_ticks != stat.start_ticks
        if stat.state in ("Z", "X") or is_another:
            return Condition.ENDED
        return Condition.STOPPED if stat.state in ("T", "t") else Condition.RUNNING


def _is_of(fields: list[str], device: str, inode: int, path: str) -> bool:
    """Whether a line of /proc/PID/maps is about this file. Some file systems give it another
    device there, but the same path."""
    if len(fields) < 6 or fields[4] != str(inode):
        return False
    return fields[3] == device or fields[5] == path


class _Stat(NamedTuple):
    """What /proc says of a process; `start_ticks` counts since the host started."""

    state: str
    parent: int
    start_ticks: int
    environment_end: int


def process_of(pid: int) -> Process:
    """The process that has this number here now."""
    stat = _read_stat(pid)
    return Process(socket.gethostname(), pid, own_namespace("pid"), stat.start_ticks if stat else 0)


def own_namespace(of: str) -> int:
    """The namespace of this process, in which it knows others by number (`of` "pid") or files by
    path ("mnt"); 0 where nobody says."""
    try:
        return Path("/proc/self/ns", of).stat().st_ino
    except OSError:
        return 0


def _read_stat(pid: int) -> _Stat | None:
    try:
        # The command name in parentheses may contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return _Stat(fields[0], int(fields[1]), int(fields[19]), int(fields[48]))
    except (OSError, IndexError, ValueError):
        return None


def all_pids() -> list[int]:
    """The numbers of all processes; none without /proc."""
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]


def parents() -> dict[int, int]:
    """The parent of every process; empty without /proc."""
    return {pid: stat.parent for pid in all_pids() if (stat := _read_stat(pid))}


def environment_of(pid: int) -> list[bytes]:
    """The variables that a process was started with, as NAME=value; without /proc none.

    Raises OSError where it has ended, or is not ours.
    """
    wait_until(lambda: not _is_starting(pid), _START_TIMEOUT_S)
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def _is_starting(pid: int) -> bool:
    """Whether it is becoming another program: for that moment /proc has no environment of it."""
    if Path(f"/proc/{pid}/environ").read_bytes():
        return False
    # A thread of the kernel has no program, either: its link cannot be read.
    Path(f"/proc/{pid}/exe").readlink()
    stat = _read_stat(pid)
    return stat is not None and stat.environment_end == 0


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send one of our signals to processes, some of which may have ended."""
    assert number in _SIGNALS_TO_RANKS
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def wait_until(
    condition: Callable[[], bool], timeout_s: float | None, poll_s: float = _POLL_S
) -> None:
    """Look at a condition again and again, until it holds or the time is over."""
    start_s = time.monotonic()
    while not condition() and (timeout_s is None or time.monotonic() - start_s < timeout_s):
        time.sleep(poll_s)
