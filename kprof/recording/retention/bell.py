"""What wakes a thread of kprof from within the workload's launches."""

from __future__ import annotations

import contextlib
import threading


class Bell:
    """Rings until somebody hears it.

    The lock of a threading.Event is taken by Python code: a signal handler that launches in the
    midst of it would wait for itself, and one that raises would leave it held.
    """

    def __init__(self) -> None:
        # Held while it does not ring.
        self._is_silent = threading.Lock()
        self._is_silent.acquire()

    def ring(self) -> None:
        """Wake who waits, or who waits next."""
        with contextlib.suppress(RuntimeError):
            self._is_silent.release()

    def hear(self, timeout_s: float) -> bool:
        """Wait until it rings, and silence it; false where that takes longer."""
        return self._is_silent.acquire(timeout=timeout_s)
