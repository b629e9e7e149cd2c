"""The open recorders of this process, and what happens to them when it forks or ends.

- When the process ends (return, exception, sys.exit, SIGTERM, SIGINT), every open recorder is
  closed. If that fails, stderr gets one line and `kprof record` a message; the workload keeps its
  own exit code.
- In a forked child the parent's recorders are off, and their buffers are null. The child may open
  its own recorder, with its own rank.
- multiprocessing ends its forked children with os._exit. One of its finalizers closes the recorders
  of such a child.
- A fork waits while a thread of kprof writes: pyarrow's allocator has a lock, and a child that
  finds it held waits for ever, in pyarrow or in pandas.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

from kprof.errors import require
from kprof.recording.endings.complaints import tell
from kprof.recording.endings.signals import handling


class Closing(Protocol):
    """A recorder that is closed when the process ends."""

    def close_at_exit(self) -> None:
        """Close; a failure is one line on stderr."""


class Open(Closing, Protocol):
    """A recorder that is open."""

    def close(self) -> None:
        """Write everything."""

    def save(self) -> None:
        """Write what there is now, and stay open."""

    def abandon(self) -> None:
        """Be off: this is a forked child."""


_NEEDED_TO_CLOSE: Final = (
    "concurrent.futures.thread",
    "multiprocessing.util",
    "duckdb",
    "pandas",
    "pyarrow.parquet",
    "kprof.capture.claims",
    "kprof.capture.parts",
    "kprof.capture.rank_summary",
    "kprof.clocks.alignment",
    "kprof.recording.rank.closing",
)


# How long a fork waits for a thread that writes.
_PATIENCE_S: Final = 5.0
_WAKE_S: Final = 0.0001

# Keeps open recorders alive: a recorder that was dropped without being closed still has events.
_open: dict[tuple[Path, int], Open] = {}
_at_exit: list[Closing] = []
_prepared_in_pid = 0


def add(directory: Path, rank: int, recorder: Open) -> None:
    """Register a recorder that has opened."""
    prepare()
    _open[directory, rank] = recorder


def discard(directory: Path, rank: int) -> None:
    """Remove a recorder that has closed."""
    _open.pop((directory, rank), None)


def has_open_recorders() -> bool:
    """Whether a recorder of this process is open."""
    return bool(_open)


def open_recorders(directory: Path | None = None) -> list[Open]:
    """All open recorders, or those that write into `directory`."""
    return [recorder for (where, _), recorder in list(_open.items()) if directory in (None, where)]


def close_at_exit(recorder: Closing) -> None:
    """Close a recorder that is off, but has something to write, when the process ends."""
    prepare()
    _at_exit.append(recorder)


def prepare() -> None:
    """Arrange that everything is closed when this process ends. A second call does nothing."""
    global _prepared_in_pid
    if _prepared_in_pid == os.getpid():
        return
    if not _prepared_in_pid:
        os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_forget_in_child)
        atexit.register(_close_all)
    _prepared_in_pid = os.getpid()
    _close_with_multiprocessing()


def import_what_closing_needs() -> None:
    """Import what closing a recorder needs, because imports can fail while the interpreter
    exits."""
    require("pyarrow", "recording")
    for name in _NEEDED_TO_CLOSE:
        importlib.import_module(name)
    import numpy as np
    import pyarrow as pa

    # The first conversion compiles code. While the interpreter exits, that makes Python forget an
    # unhandled KeyboardInterrupt, and the process exits with 1 instead of dying of SIGINT.
    pa.Table.from_arrays([pa.array(np.zeros(1))], names=["warm up"])


def give_up(
    directory: Path, rank: int, error: Exception, num_lost: int, *, is_kept: bool, goes_on: bool
) -> bool:
    """Say on stderr, and to whoever finishes the capture, that so many launches are lost; false
    where the latter cannot be told.

    `is_kept`: what was recorded outlives the process. `goes_on`: more launches may come.
    """
    from kprof.capture.losses import GaveUp

    # What CUDA and torch add about themselves is in the workload's own traceback.
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return tell(directory, GaveUp(rank, reason, None if is_kept else num_lost, goes_on))


def is_there(directory: Path) -> bool:
    """Whether there is a directory; where this process has given up the right to look, whoever
    started it still has it."""
    try:
        return directory.is_dir()
    except PermissionError:
        return True


def tell_of_child(directory: Path, rank: int, kernel: str) -> None:
    """Say that a forked child launched something that its parent's recorder does not record."""
    tell(
        directory,
        f"rank {rank}: a forked child launched {kernel!r} with its parent's recorder, which is off "
        "there; call kprof.recorder(rank=..., world_size=...) in the child, or, inside "
        "kprof.session, open a session into another output there",
    )


def describe_running(launcher: int) -> str:
    """Why the last launch may lack events if the thread that made it outlives the exit handlers:
    a daemon, whose kernel on the CPU nobody waits for.

    Empty for this thread, for those that have ended, and for threads that Python did not start.
    """
    for thread in threading.enumerate():
        is_pythons = not isinstance(thread, threading._DummyThread)
        if thread.ident == launcher != threading.get_ident() and is_pythons:
            return (
                f"the thread {thread.name!r} made its last launch and still ran at exit, so that "
                "launch may lack events; join the thread before the program ends"
            )
    return ""


_ended_by = 0


def exit_on_signal(number: int, frame: FrameType | None) -> None:
    """A signal handler that ends the process through its exit handlers, of which kprof's is the
    last: there the process dies of the signal, as without kprof."""
    global _ended_by
    del frame
    _ended_by = number
    raise SystemExit(128 + number)


def die_of(number: int) -> None:
    """For other threads: end the process by a signal for which it has `exit_on_signal`, because it
    does not get as far as its exit handlers. Without kprof it would have ended at once."""
    if signal.getsignal(number) is not exit_on_signal:
        return
    # Only the main thread may ask Python for that.
    ctypes.CDLL(None).signal(number, ctypes.c_void_p(signal.SIG_DFL))
    os.kill(os.getpid(), number)


_DEADLY: Final = (signal.SIGTERM, signal.SIGHUP)


def end_well_on_signals() -> None:
    """Let SIGTERM and SIGHUP end the process through atexit (torchrun sends SIGTERM when another
    rank fails).

    Only if the workload has no handler of its own, and only in the main thread.
    """
    prepare()
    for number in _DEADLY:
        with contextlib.suppress(ValueError):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, exit_on_signal)


def _close_with_multiprocessing() -> None:
    """Register the finalizer, if multiprocessing started this process."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None or multiprocessing.parent_process() is None:
        return
    from multiprocessing.util import Finalize

    # The lowest priority runs last, because other finalizers may still launch kernels.
    Finalize(None, _close_all, exitpriority=-1000)


def _close_all() -> None:
    """Close all, with signals ignored: torchrun may send SIGTERM while this rank writes its
    events, and a signal could only leave torn files.

    Exit handlers of the workload that run later have signals as they would without kprof, and so
    have processes that they start.
    """
    with handling(signal.SIG_IGN):
        for recorder in [*_at_exit, *_open.values()]:
            recorder.close_at_exit()
    _die_of_signals()
    if _ended_by and signal.getsignal(_ended_by) is signal.SIG_DFL:
        signal.raise_signal(_ended_by)


# A signal handler of the workload's may fork while its thread writes.
_writing = threading.RLock()


class _Held(threading.local):
    """What forks of this thread hold, the innermost last: a signal handler may fork while a fork
    waits. A mask of signals, and whether `_writing` is held for it."""

    def __init__(self) -> None:
        self.forks: list[tuple[set[int], bool]] = []


_held = _Held()


@contextlib.contextmanager
def forks_wait() -> Iterator[None]:
    """A context in which no other thread forks."""
    with _writing:
        yield


@contextlib.contextmanager
def forks_pass() -> Iterator[None]:
    """A context within `forks_wait` in which threads fork that wait for it."""
    _writing.release()
    try:
        # The thread that waits has to wake up first.
        time.sleep(_WAKE_S)
        yield
    finally:
        _writing.acquire()


def _is_writing() -> bool:
    """Whether this thread holds the others' forks up."""
    return bool(_writing._is_owned())  # type: ignore[attr-defined]


def _hold() -> None:
    """A signal for a forked child must find it without our handler: Python ignores what a handler
    raises while it forks, and the parent's saver would take it for the parent's."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _DEADLY)
    waits = not _is_writing()
    _held.forks.append((mask, waits))
    if waits:
        # A disk that hangs must not stop the workload.
        _writing.acquire(timeout=_PATIENCE_S)


def _let_go() -> None:
    # Another thread may have registered this while the fork was under way.
    with contextlib.suppress(IndexError):
        mask, waits = _held.forks.pop()
        # Not by what `acquire` returned: a signal handler may have raised something after it.
        if waits and _is_writing():
            _writing.release()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _forget_in_child() -> None:
    global _ended_by, _writing
    _ended_by = 0
    for recorder in list(_open.values()):
        recorder.abandon()
    _at_exit.clear()
    # multiprocessing's terminate() kills a child by the signal itself.
    _die_of_signals()
    if not _is_writing():
        _writing = threading.RLock()
    _let_go()


def _die_of_signals() -> None:
    """Undo `end_well_on_signals`."""
    for number in _DEADLY:
        with contextlib.suppress(ValueError):
            if signal.getsignal(number) is exit_on_signal:
                signal.signal(number, signal.SIG_DFL)
