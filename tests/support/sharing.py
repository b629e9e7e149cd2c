"""The shared memory of a recording that a test makes up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from kprof.capture.shared_memory import make_memory, remove_memory


@contextlib.contextmanager
def sharing_memory(directory: Path) -> Iterator[None]:
    """Memory for the ranks that record into a directory."""
    make_memory(directory)
    try:
        yield
    finally:
        remove_memory(directory)
