"""What a process that records says, on stderr and to whoever finishes the capture."""

from __future__ import annotations

import contextlib
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kprof.capture.losses import GaveUp


def complain(text: str) -> None:
    """Print a line to stderr, if there is one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"kprof: {' '.join(text.split())}\n")
        sys.stderr.flush()


@functools.cache
def complain_once(text: str) -> None:
    """The same, unless this process has said it before."""
    complain(text)


def tell(directory: Path, message: str | GaveUp) -> bool:
    """Say something on stderr, and to whoever finishes the capture; false where the latter cannot
    be told."""
    from kprof.capture.claims import leave_message
    from kprof.capture.losses import sentence_of

    is_left = leave_message(directory, message)
    complain(sentence_of(message))
    return is_left
