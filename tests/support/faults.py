"""Faults at every step of a function. A step is whatever Python audits: opening, making, renaming, locking, removing."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

_STEPS = ("open", "os.", "shutil.", "mmap.", "fcntl.", "tempfile.")


class _Injector:
    """Counts steps of the thread that armed it, and raises at one of them."""

    def __init__(self) -> None:
        self.thread = 0
        self.num_steps = 0
        self.fails_at = -1
        self.error: BaseException | None = None
        self.where = ""

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.thread != threading.get_ident() or not event.startswith(_STEPS):
            return
        self.num_steps += 1
        if self.num_steps - 1 == self.fails_at and self.error is not None:
            self.where = f"{event} {arguments[:2]}"
            raise self.error


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
    step: int, error: BaseException | None, function: Callable[[], object]
) -> tuple[int, str]:
    """Call a function, and raise at one of its steps, if it has as many.

    Returns the number of its steps so far, and what the fault interrupted. Whatever the function raises is dropped: a
    fault may come out as another error, or as none.
    """
    if not _hooks:
        # A hook cannot be taken away again.
        sys.addaudithook(_injector.see)
        _hooks.append(_injector)
    _injector.__init__()  # type: ignore[misc]
    _injector.fails_at, _injector.error = step, error
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
