"""File descriptors that kprof keeps open in a process whose workload may close what it did not
open, as `os.closerange(3, 1000)` does."""

from __future__ import annotations

import fcntl
import os
import resource
from typing import Final

# Nobody's next open() gets a number this high, and the kernel's table for it stays small.
_HIGH: Final = 4096
_MARGIN: Final = 64


class OwnDescriptor:
    """Takes over an open descriptor and moves it to a high number, `number`.

    It may be closed behind our back, and the number given to another file. That file is never
    closed here, and callers ask `is_open` before they use the number.
    """

    def __init__(self, number: int) -> None:
        self.number = _move_up(number)
        self._identity = _identity_of(self.number)

    def is_open(self) -> bool:
        """Whether the number still means our file."""
        return self._identity is not None and _identity_of(self.number) == self._identity

    def close(self) -> None:
        """Close our file if nobody has yet. A second call does nothing."""
        if self.is_open():
            os.close(self.number)
        self._identity = None


def _move_up(number: int) -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = _HIGH if limit == resource.RLIM_INFINITY else min(limit, _HIGH)
    try:
        moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, max(0, highest - _MARGIN))
    except OSError:
        return number
    os.close(number)
    return moved


def _identity_of(number: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino
