"""Opening files that somebody else may have made: plain files only, of a size that can be read.

A capture that came by mail or in an archive may hold a pipe (reading it never ends), a device, or a link to a file of
the reader's own (which would end up in an export that is sent back). None of these is opened.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from kprof.errors import CorruptCaptureError

# Manifests of a thousand ranks with a thousand launches each have about 100 MB.
MAX_JSON_BYTES: Final = 1 << 30
_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def describe_special(mode: int) -> str:
    """ "a pipe" for what is no plain file; empty for one that is."""
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "")


def check_own_file(path: Path) -> int:
    """The size in bytes of a file of a capture; raises CorruptCaptureError unless it is a plain file in there."""
    try:
        if path.is_symlink() and not _is_inside(path):
            raise CorruptCaptureError(
                f"{path} is a link to a file outside the capture, which kprof does not follow; "
                "copy that file here if you trust it"
            )
        status = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    if special := describe_special(status.st_mode):
        raise CorruptCaptureError(
            f"{path} is {special}, not a file; restore the file or record again"
        )
    return status.st_size


def read_own_file(path: Path, limit_bytes: int = MAX_JSON_BYTES) -> bytes:
    """The bytes of a file of a capture; raises CorruptCaptureError."""
    size_bytes = check_own_file(path)
    if size_bytes > limit_bytes:
        raise CorruptCaptureError(
            f"{path} has {size_bytes:,} bytes and kprof reads at most {limit_bytes:,}; restore the file"
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> CorruptCaptureError:
    """The sentence about a file that the operating system refuses."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return CorruptCaptureError(f"cannot read {path}: {reason}; check its permissions")


def _is_inside(link: Path) -> bool:
    return link.resolve().is_relative_to(link.parent.resolve())
