"""The open recorders of this process, and what becomes of them when it forks or ends.

- At its end (return, exception, sys.exit, SIGTERM, SIGINT) every open recorder is closed. A failure
  costs one line on stderr and a message for `kprof record`; the workload keeps its own exit code.
- A forked child inherits no recorder: those of its parent are off there and their buffers are null.
  It may open one of its own, with a rank of its own.
- multiprocessing ends its forked children with os._exit, so its own finalizers also close a
  recorder that such a child opens.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol

from kprof.recording.interrupts import ignore_signals

if TYPE_CHECKING:
    from kprof.recording.recorder import Recorder

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
)


class Closable(Protocol):
    """What is closed when the process ends."""

    def close_at_exit(self) -> None:
        """Write what there is; never raises."""


# Open recorders are kept alive here: one that is dropped unclosed still has its events.
_open: dict[tuple[Path, int], Recorder] = {}
_at_exit: list[Closable] = []
_prepared_in_pid = 0


def add(directory: Path, rank: int, recorder: Recorder) -> None:
    """A recorder is open from now on."""
    prepare()
    _open[directory, rank] = recorder


def discard(directory: Path, rank: int) -> None:
    """A recorder is closed."""
    _open.pop((directory, rank), None)


def has_open_recorders() -> bool:
    """Whether a recorder of this process records."""
    return bool(_open)


def open_recorders(directory: Path | None = None) -> list[Recorder]:
    """All of them, or those that write into one directory."""
    return [recorder for (where, _), recorder in list(_open.items()) if directory in (None, where)]


def close_at_exit(closable: Closable) -> None:
    """Close this at the end of the process, too."""
    prepare()
    _at_exit.append(closable)


def prepare() -> None:
    """Have everything closed at the end of this process; called again, it does nothing."""
    global _prepared_in_pid
    if _prepared_in_pid == os.getpid():
        return
    if not _prepared_in_pid:
        os.register_at_fork(after_in_child=_forget_in_child)
        atexit.register(_close_all)
    _prepared_in_pid = os.getpid()
    _close_with_multiprocessing()


def import_what_closing_needs() -> None:
    """Import what closing a recorder needs: many imports fail while the interpreter exits."""
    for name in _NEEDED_TO_CLOSE:
        importlib.import_module(name)
    import numpy as np
    import pyarrow as pa

    # The first conversion compiles code, as imports do. During exit that makes Python forget an
    # unhandled KeyboardInterrupt, and the process ends with 1 instead of by SIGINT.
    pa.Table.from_arrays([pa.array(np.zeros(1))], names=["warm up"])


def complain(text: str) -> None:
    """A line on stderr; nowhere where there is none."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"kprof: {' '.join(text.split())}\n")
        sys.stderr.flush()


def exit_on_signal(number: int, frame: FrameType | None) -> None:
    """A signal handler that ends the process by way of its exit handlers."""
    del frame
    raise SystemExit(128 + number)


_DEADLY: Final = (signal.SIGTERM, signal.SIGHUP)


def end_well_on_signals() -> None:
    """SIGTERM (torchrun stops the others when one rank fails) and SIGHUP end the process by way of
    atexit.

    Only where the workload has no handler of its own, and only from the main thread.
    """
    for number in _DEADLY:
        with contextlib.suppress(ValueError):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, exit_on_signal)


def _close_with_multiprocessing() -> None:
    """Does nothing in a process that multiprocessing did not start."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None or multiprocessing.parent_process() is None:
        return
    from multiprocessing.util import Finalize

    # The lowest priority runs last: the finalizers of others may still launch kernels.
    Finalize(None, _close_all, exitpriority=-1000)


def _close_all() -> None:
    """Torchrun sends SIGTERM when another rank dies, also while this one writes its events."""
    ignore_signals()
    for closable in [*_at_exit, *_open.values()]:
        closable.close_at_exit()


def _forget_in_child() -> None:
    for recorder in _open.values():
        recorder.abandon()
    _open.clear()
    _at_exit.clear()
    for number in _DEADLY:
        # Without kprof, multiprocessing's terminate() ends a child by the signal itself.
        with contextlib.suppress(ValueError):
            if signal.getsignal(number) is exit_on_signal:
                signal.signal(number, signal.SIG_DFL)
