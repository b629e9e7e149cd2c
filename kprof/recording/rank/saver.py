"""A thread that saves what a process recorded when its main thread cannot, because it hangs in a
kernel.

Python runs signal handlers in the main thread, between two of its instructions. While that thread
waits for a kernel that never ends, SIGINT and SIGTERM do nothing until SIGKILL comes. But Python's
C handler still writes the signal's number into its wakeup pipe, which this thread reads:

    SIGINT, SIGTERM ──> pipe ──> this thread ── the main thread closes within 2 s ──> nothing to do
                                            └── it does not, or a signal comes ──> Recorder.save()
                                                 └── SIGTERM, SIGHUP: then the process dies of it,
                                                     as it would at once without kprof

A main thread that hears SIGTERM may not come to its end either: a thread that it waits for goes on,
or an `except:` has caught the exception.

SAVE_SIGNAL asks for a save at once, of a process that goes on: kprof sends it to look at a run that
does not move.

A save writes a part (see kprof.capture.parts) and changes nothing else: whoever handles the signal
and goes on loses nothing. It needs the interpreter lock, so it works wherever the hanging call has
released it: ctypes, and every way in which torch waits for a GPU.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from kprof.capture.descriptors import OwnDescriptor
from kprof.capture.processes import SAVE_SIGNAL
from kprof.recording.endings import complaints, lifetime

_GRACE_S: Final = 2.0
_ENDING: Final = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
# No signal has this number: the recorders are being closed.
_CLOSING: Final = 0


class _Saver:
    """One per process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.has_stopped = False
        ends = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.reading, self.writing = (OwnDescriptor(end) for end in ends)
        self._poll = select.poll()
        self._poll.register(self.reading.number, select.POLLIN)
        thread = threading.Thread(target=self._watch, name="kprof saver", daemon=True)
        thread.start()

    def is_open(self) -> bool:
        """Whether the workload has left the pipe open."""
        return self.reading.is_open() and self.writing.is_open()

    def _watch(self) -> None:
        while self.is_open():
            number, answer = self._next_signal(timeout_s=None), None
            end_s = time.monotonic() + _GRACE_S
            if number in _ENDING or number == _CLOSING:
                # The main thread gets a chance; a second signal means that there is no time left.
                answer = self._next_signal(_GRACE_S)
            elif number in _listeners:
                _listeners[number]()
                continue
            elif number != SAVE_SIGNAL:
                continue
            for recorder in lifetime.open_recorders():
                recorder.save()
            while number in _ENDING and answer != _CLOSING:
                left_s = end_s - time.monotonic()
                if answer is None or left_s <= 0:
                    lifetime.die_of(number)
                    break
                answer = self._next_signal(left_s)

    def _next_signal(self, timeout_s: float | None) -> int | None:
        """Wait for a signal, or for the main thread to begin closing.

        None where neither came, or the workload has closed the pipe.
        """
        events = self._poll.poll(None if timeout_s is None else timeout_s * 1e3)
        if not events or not self.is_open():
            return None
        with contextlib.suppress(OSError):
            read = os.read(self.reading.number, 1)
            return read[0] if read else None
        return None


_saver: _Saver | None = None
# What to do at once when a signal comes, also while the main thread hangs.
_listeners: dict[int, Callable[[], None]] = {}


def listen(number: int, listener: Callable[[], None] | None) -> None:
    """Call `listener` in the saver's thread when a signal comes that Python handles; None ends it.

    It must return at once.
    """
    if listener is None:
        _listeners.pop(number, None)
    else:
        _listeners[number] = listener


def hears_signals() -> bool:
    """Whether signals come to the saver's thread now: another library may have taken them over.

    For the main thread.
    """
    if not signal_here():
        return False
    assert _saver is not None
    descriptor = signal.set_wakeup_fd(-1)
    is_ours = descriptor == _saver.writing.number
    signal.set_wakeup_fd(descriptor, warn_on_full_buffer=not is_ours)
    return is_ours


def start() -> None:
    """Save what is recorded when the process is about to be killed. Does nothing outside of the
    main thread.

    A workload that has a wakeup descriptor of its own (an asyncio loop with signal handlers) keeps
    it. Where a limit leaves no descriptor or no thread, nothing is saved so.
    """
    global _saver
    if _saver is not None and _saver.pid == os.getpid():
        return
    with contextlib.suppress(ValueError, OSError, RuntimeError):
        previous = signal.set_wakeup_fd(-1)
        if previous != -1 and (_saver is None or previous != _saver.writing.number):
            signal.set_wakeup_fd(previous)
            return
        if _saver is None:
            os.register_at_fork(after_in_child=_stop_in_child)
        _saver = _Saver()
        # Only signals with a Python handler come to the pipe. The thread does all the work.
        signal.signal(SAVE_SIGNAL, _ignore)
        signal.siginterrupt(SAVE_SIGNAL, False)
        signal.set_wakeup_fd(_saver.writing.number, warn_on_full_buffer=False)


def signal_here() -> int:
    """The signal on which this process saves what it has recorded; 0 where nobody listens."""
    is_here = _saver is not None and _saver.pid == os.getpid() and not _saver.has_stopped
    return SAVE_SIGNAL if is_here else 0


def note_closing() -> None:
    """The recorders are being closed: should that hang, it is as if a signal had come."""
    if _saver is None or _saver.pid != os.getpid() or _saver.has_stopped:
        return
    if _saver.is_open():
        with contextlib.suppress(OSError):
            os.write(_saver.writing.number, bytes([_CLOSING]))
    else:
        _saver.has_stopped = True
        _stop_wakeups(_saver)
        complaints.complain(
            "the workload closed a pipe of kprof: had this process hung, what it recorded could "
            "not have been saved; close only descriptors that the workload opened"
        )


def _ignore(number: int, frame: FrameType | None) -> None:
    del number, frame


def _stop_in_child() -> None:
    """A forked child's signals are not its parent's."""
    if _saver is not None:
        _stop_wakeups(_saver)


def _stop_wakeups(saver: _Saver) -> None:
    with contextlib.suppress(ValueError):
        descriptor = signal.set_wakeup_fd(-1)
        if descriptor not in (-1, saver.writing.number):
            signal.set_wakeup_fd(descriptor)
