"""Signals that kprof gets while a workload runs: they go to the workload, and kprof stays.

A second Ctrl-C saves what ranks that hang have recorded, and kills the process tree.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from types import FrameType

from kprof.capture.processes import parents
from kprof.recording.endings.signals import ENDING, handling
from kprof.recording.launcher.stopping import RecordingRanks


@contextlib.contextmanager
def forwarding_signals(ranks: RecordingRanks) -> Iterator[SignalForwarder]:
    """A context in which terminating signals go to the process that is attached to its
    forwarder."""
    forwarder = SignalForwarder(ranks)
    ending = handling(forwarder.handle, (*ENDING, signal.SIGQUIT))
    own = handling(forwarder.pass_on, (signal.SIGUSR2, signal.SIGWINCH))
    with ending, own, handling(forwarder.stop, (signal.SIGTSTP,)):
        yield forwarder


class SignalForwarder:
    """Forwards signals to a workload.

    A second SIGINT saves what its ranks recorded and kills it, and so does SIGQUIT; a third kills.
    """

    def __init__(self, ranks: RecordingRanks) -> None:
        self.was_interrupted = False
        self._ranks = ranks
        self._num_interrupts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: list[tuple[Callable[[int], None], int]] = []

    def attach(self, process: subprocess.Popen[bytes]) -> None:
        """Set the process that gets the signals, and forward those that came before it existed."""
        self._process = process
        for action, number in self._pending:
            action(number)

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """The handler of a signal that ends the workload."""
        self.was_interrupted = True
        self._once_attached(self._forward, number)

    def pass_on(self, number: int, _frame: FrameType | None) -> None:
        """The handler of a signal that is the workload's own."""
        self._once_attached(self._send, number)

    def stop(self, number: int, _frame: FrameType | None) -> None:
        """The handler of Ctrl-Z."""
        self._once_attached(self._stop, number)

    def _once_attached(self, action: Callable[[int], None], number: int) -> None:
        if self._process is None:
            self._pending.append((action, number))
        else:
            action(number)

    def _send(self, number: int) -> None:
        assert self._process is not None
        with contextlib.suppress(PermissionError):
            self._process.send_signal(number)

    def _send_to_group(self, number: int) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _stop(self, number: int) -> None:
        """The workload stops with kprof, and goes on with it.

        SIGTSTP does nothing in its own session, where no shell would continue it.
        """
        self._send_to_group(signal.SIGSTOP)
        # Where no shell would continue kprof, either, this does nothing.
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        signal.signal(number, self.stop)
        self._send_to_group(signal.SIGCONT)

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
        self._send_to_group(passed_on)


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
