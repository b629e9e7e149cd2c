"""Faults at every step of a function. A step is whatever Python audits: opening, making, renaming, locking, removing."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

_STEPS = ("open", "os.", "shutil.", "mmap.", "fcntl.", "tempfile.")
_CHANGES = (
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.truncate",
    "os.chmod",
    "shutil.",
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class _Injector:
    """Counts steps of the thread that armed it, and raises at one of them."""

    def __init__(self) -> None:
        self.thread = 0
        self.num_steps = 0
        self.fails_at = -1
        self.error: BaseException | None = None
        self.where = ""
        self.only_changes = False
        self.at_the_step: Callable[[], object] = lambda: None

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.thread != threading.get_ident() or not event.startswith(_STEPS):
            return
        if self.only_changes and not is_change(event, arguments):
            return
        self.num_steps += 1
        if self.num_steps - 1 == self.fails_at:
            self.where = f"{event} {arguments[:2]}"
            self.at_the_step()
            if self.error is not None:
                raise self.error


def is_change(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether the files may be others after this step."""
    if event == "open":
        return bool(arguments[2] & _WRITES)
    return event.startswith(_CHANGES)


_injector = _Injector()
_hooks: list[object] = []


@contextlib.contextmanager
def without_faults() -> Iterator[None]:
    """What is done in there is no step."""
    thread, _injector.thread = _injector.thread, 0
    try:
        yield
    finally:
        _injector.thread = thread


def fail_at(
    step: int,
    error: BaseException | None,
    function: Callable[[], object],
    only_changes: bool = False,
    at_the_step: Callable[[], object] = lambda: None,
) -> tuple[int, str]:
    """Call a function, and raise at one of its steps, if it has as many. `only_changes`: those that only read are
    none. Returns the number of its steps so far, and what the fault interrupted. Whatever the function raises
    is dropped: a fault may come out as another error, or as none."""
    if not _hooks:
        # A hook cannot be taken away again.
        sys.addaudithook(_injector.see)
        _hooks.append(_injector)
    _injector.__init__()  # type: ignore[misc]
    _injector.fails_at, _injector.error = step, error
    _injector.only_changes, _injector.at_the_step = only_changes, at_the_step
    _injector.thread = threading.get_ident()
    try:
        function()
    except BaseException as raised:
        if error is None:
            raise
        if not isinstance(raised, Exception | KeyboardInterrupt):
            raise
    finally:
        _injector.thread = 0
    return _injector.num_steps, _injector.where


def kill_at(
    step: int, number: signal.Signals, function: Callable[[], object], *, is_handled: bool = False
) -> bool:
    """Call a function in a forked child, which gets this signal at one of the steps that change files. False where
    it has fewer steps. Nothing runs between the signal and the end, as with SIGKILL; with `is_handled` the
    function's own handler decides."""
    child = os.fork()
    if not child:
        # What other tests of this process left behind belongs to its threads, and not to the child.
        gc.freeze()
        reached: list[int] = []

        def send() -> None:
            reached.append(step)
            os.kill(os.getpid(), number)

        try:
            if not is_handled:
                signal.signal(number, signal.SIG_DFL)
            fail_at(step, None, function, True, send)
        except SystemExit:
            pass
        except BaseException:
            os._exit(1)
        os._exit(2 if reached else 0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in ((0, 2) if is_handled else (0, -number))
    return code != 0
