"""Signals: `kprof record` forwards them to the workload, and a recorder defers them while it
writes.

The workload runs in its own session, so a Ctrl-C at the terminal reaches only `kprof record`, which
forwards it exactly once. Launchers such as torchrun start their workers in further sessions, so a
kill follows the process tree. Python runs signal handlers in the main thread only; in other threads
the contexts below do nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from kprof.capture.processes import parents

if TYPE_CHECKING:
    from kprof.recording.stopping import RecordingRanks

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def forwarding_signals(ranks: RecordingRanks) -> Iterator[SignalForwarder]:
    """A context in which terminating signals go to the process that is attached to its
    forwarder."""
    forwarder = SignalForwarder(ranks)
    with _handling(forwarder.handle, (*_ENDING, signal.SIGQUIT)):
        yield forwarder


@contextlib.contextmanager
def deferring_signals() -> Iterator[None]:
    """A context that defers terminating signals to its end."""
    arrived: list[int] = []
    try:
        with _handling(lambda number, _frame: arrived.append(number)):
            yield
    finally:
        for number in arrived:
            signal.raise_signal(number)


def ignore_signals() -> None:
    """For the last steps of a process that is ending: a signal could only leave torn files."""
    if threading.current_thread() is threading.main_thread():
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def _handling(
    handler: Callable[[int, FrameType | None], None], numbers: tuple[signal.Signals, ...] = _ENDING
) -> Iterator[None]:
    """Handle terminating signals.

    Leaves ignored signals ignored, and does not touch handlers of C code (None).
    """
    previous: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                previous[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in previous.items():
            signal.signal(number, earlier)


class SignalForwarder:
    """Forwards signals to a workload.

    A second SIGINT saves what its ranks recorded and kills it, and so does SIGQUIT; a third kills.
    """

    def __init__(self, ranks: RecordingRanks) -> None:
        self.was_interrupted = False
        self._ranks = ranks
        self._num_interrupts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: list[int] = []

    def attach(self, process: subprocess.Popen[bytes]) -> None:
        """Set the process that gets the signals, and forward those that came before it existed."""
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
        has_ended = self._process.returncode is not None
        self._num_interrupts += number == signal.SIGINT
        if number == signal.SIGQUIT:
            self._num_interrupts = max(2, self._num_interrupts + 1)
        if self._num_interrupts > 1:
            if self._num_interrupts == 2:
                self._ranks.save()
            if not has_ended:
                kill_tree(self._process.pid)
            self._ranks.signal(signal.SIGKILL)
            return
        if number in (signal.SIGINT, signal.SIGTERM):
            self._ranks.say_passed_on(number)
        # SIGHUP means that the terminal is gone, which does not concern another session. SIGTERM
        # lets recorders write.
        passed_on = signal.SIGTERM if number == signal.SIGHUP else number
        if has_ended:
            self._ranks.signal(passed_on)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, passed_on)


def kill_tree(pid: int) -> None:
    """SIGKILL a process, its group and all its descendants, whatever session they are in."""
    for process in [pid, *_descendants(pid)]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """All living descendants, parents first. Empty without /proc."""
    children: dict[int, list[int]] = {}
    for child, parent in parents().items():
        children.setdefault(parent, []).append(child)
    found = []
    queue = [pid]
    while queue:
        for child in children.get(queue.pop(), ()):
            found.append(child)
            queue.append(child)
    return found
