"""What signals do in a process that records: those that end it wait until files are whole.

Python runs signal handlers in the main thread only; in other threads the contexts below do nothing.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def deferring_signals() -> Iterator[None]:
    """A context that defers terminating signals to its end."""
    arrived: list[int] = []
    try:
        with handling(lambda number, _frame: arrived.append(number)):
            yield
    finally:
        for number in arrived:
            signal.raise_signal(number)


@contextlib.contextmanager
def handling(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers,
    numbers: tuple[signal.Signals, ...] = ENDING,
) -> Iterator[None]:
    """Handle terminating signals meanwhile.

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
