"""Passes SIGINT and SIGTERM on to a workload, so that interrupting the profiler interrupts what it profiles.

The workload runs in a session of its own, so a Ctrl-C at the terminal reaches only us and is passed on exactly once.
Launchers such as torchrun start their workers in further sessions: a kill therefore follows the process tree.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

_FORWARDED: Final = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def forwarding_signals() -> Iterator[SignalForwarder]:
    """A context in which SIGINT and SIGTERM go to the process that is attached to its forwarder.

    Does nothing outside the main thread (Python delivers signals there only), and leaves an ignored signal ignored.
    """
    forwarder = SignalForwarder()
    previous: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, forwarder.handle)
    try:
        yield forwarder
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class SignalForwarder:
    """Passes signals on to a process group; a second SIGINT kills the whole process tree."""

    def __init__(self) -> None:
        self.was_interrupted = False
        self._num_interrupts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: list[int] = []

    def attach(self, process: subprocess.Popen[bytes]) -> None:
        """Name the process that signals go to, and pass on those that came before it existed."""
        self._process = process
        for number in self._pending:
            self._forward(number)

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        self.was_interrupted = True
        if self._process is None:
            self._pending.append(number)
        else:
            self._forward(number)

    def _forward(self, number: int) -> None:
        assert self._process is not None
        self._num_interrupts += number == signal.SIGINT
        if self._process.returncode is not None:
            return
        if self._num_interrupts > 1:
            kill_tree(self._process.pid)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def kill_tree(pid: int) -> None:
    """SIGKILL a process, its group and all its descendants, whatever session they are in."""
    for process in [pid, *_descendants(pid)]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """All living descendants, parents first; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found = []
    queue = [pid]
    while queue:
        for child in children.get(queue.pop(), ()):
            found.append(child)
            queue.append(child)
    return found


def _parents() -> list[tuple[int, int]]:
    """(process, parent) of every process."""
    pairs = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The command name in parentheses may hold spaces; what follows its last parenthesis does not.
            after_name = entry.read_text().rpartition(")")[2].split()
            pairs.append((int(entry.parent.name), int(after_name[1])))
    return pairs
