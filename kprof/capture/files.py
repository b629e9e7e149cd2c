"""Opening files that somebody else may have made: plain files only, of a size that can be read.

A capture from a mail or an archive may hold a pipe (reading it never ends), a device, or a link to
one of the reader's own files (which would end up in an export that is sent back). None of these is
opened.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from kprof.errors import CaptureError, CorruptCaptureError, RegionError
from kprof.private import others_can_write

T = TypeVar("T")
# Manifests of a thousand ranks with a thousand launches each have about 100 MB.
MAX_JSON_BYTES: Final = 1 << 30
# JSON of a profiler becomes a fiftieth at best. A few bytes can claim to unpack into gigabytes.
_MAX_GZIP_RATIO: Final = 200
_ALWAYS_ALLOWED_BYTES: Final = 1 << 24
# The tag of a packet and its length, which is below 256 MiB.
_MOST_TAG_BYTES: Final = 5
_PACKET: Final = re.compile(rb"\x0a([\x80-\xff]{0,3}[\x00-\x7f])")
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
    """The size in bytes of a file of a capture.

    Raises CorruptCaptureError unless it is a plain file inside the capture.
    """
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


def is_own_file(path: Path) -> bool:
    """Whether `check_own_file` raises nothing."""
    with contextlib.suppress(CorruptCaptureError):
        check_own_file(path)
        return True
    return False


def read_own_file(path: Path) -> bytes:
    """The bytes of a file of a capture; raises CorruptCaptureError."""
    size_bytes = check_own_file(path)
    if size_bytes > MAX_JSON_BYTES:
        raise CorruptCaptureError(
            f"{path} has {size_bytes:,} bytes and kprof reads at most {MAX_JSON_BYTES:,}; "
            "restore the file"
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


def refuse_special(path: Path) -> None:
    """Raises ValueError for a pipe, a device or a folder, and OSError where there is nothing."""
    if special := describe_special(path.stat().st_mode):
        raise ValueError(f"it is {special}")


def read_maybe_gzipped(path: Path) -> bytes:
    """The bytes of a file, unpacked if it is gzipped; raises OSError, EOFError or ValueError.

    ValueError for a pipe or a device, and for a file that unpacks into far more than any recording
    would.
    """
    refuse_special(path)
    data = path.read_bytes()
    if data[:2] != b"\x1f\x8b":
        return data
    limit_bytes = max(_ALWAYS_ALLOWED_BYTES, _MAX_GZIP_RATIO * len(data))
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
        unpacked = packed.read(limit_bytes + 1)
    if len(unpacked) > limit_bytes:
        raise ValueError(f"it unpacks into more than {limit_bytes:,} bytes")
    return unpacked


def begins_with_packets(head: bytes, *, is_cut: bool) -> bool:
    """Whether these are packets of Perfetto's protobuf: a tag, a length (a varint), so many bytes.

    The last one must be whole, unless the file `is_cut` there.
    """
    at = 0
    while found := _PACKET.match(head, at):
        at = found.end() + sum((byte & 0x7F) << 7 * i for i, byte in enumerate(found[1]))
    return at > 0 and (at == len(head) or (is_cut and len(head) < at + _MOST_TAG_BYTES))


def check_recording(directory: Path) -> None:
    """An unfinished recording that may be read, asked and finished.

    Raises CaptureError for one that others can change, and CorruptCaptureError for one with links
    or anything else but plain files, which kprof never makes.
    """
    try:
        _refuse_foreign_links(directory)
        _check_ours(directory)
        for path in _all_in(directory):
            if path.is_dir() and not path.is_symlink():
                _check_ours(path)
        others = [path for path in _all_in(directory) if not _is_plain(path)]
    except OSError as error:
        raise unreadable(directory, error) from error
    if others:
        raise CorruptCaptureError(
            f"{others[0]} is a link or not a regular file, which no recording has; remove it if "
            "you trust the rest"
        )


def _refuse_foreign_links(directory: Path) -> None:
    """Raises CaptureError where another user has put a link on the way there."""
    place = directory.absolute()
    for path in (place, *place.parents):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, os.geteuid()):
            raise CaptureError(
                f"{path} is a link of user {status.st_uid}, which kprof does not follow; name the "
                "directory itself"
            )


def _check_ours(directory: Path) -> None:
    status = directory.stat()
    is_ours = status.st_uid == os.geteuid()
    if not is_ours or others_can_write(status):
        remedy = "chmod go-w it if they have not" if is_ours else "use your own copy (cp -r)"
        raise CaptureError(
            f"{directory} belongs to user {status.st_uid} (mode {status.st_mode & 0o777:o}), so "
            f"others can change it while kprof works there; {remedy}"
        )


def _all_in(directory: Path) -> list[Path]:
    """All that is in there, in whatever depth. Links are not followed."""
    return [Path(at, name) for at, *both in os.walk(directory) for name in [*both[0], *both[1]]]


def _is_plain(path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        # A rank that is under way has renamed or removed it.
        return True
    is_own_file = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    return is_own_file or stat.S_ISDIR(status.st_mode)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an OSError while reading `path` into a CaptureError: it may be gone at the next try."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise CaptureError(f"cannot read {error.filename or path}: {reason}") from error


def unreadable(path: Path, error: OSError) -> CorruptCaptureError:
    """The sentence about a file that the operating system refuses."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    is_missing = error.errno == errno.ENOENT
    remedy = "restore the file or record again" if is_missing else "check its permissions"
    return CorruptCaptureError(f"cannot read {path}: {reason}; {remedy}")


def _is_inside(link: Path) -> bool:
    # Path.resolve raises RuntimeError for a link to itself.
    return Path(os.path.realpath(link)).is_relative_to(os.path.realpath(link.parent))


def damaged(path: Path, fault: str) -> CorruptCaptureError:
    """The sentence about a damaged file."""
    return CorruptCaptureError(f"{path} is damaged ({fault}); restore the file or record again")


def decode(path: Path, kind: type[T]) -> T:
    """A file of a capture as a struct; raises CorruptCaptureError."""
    return decode_bytes(path, read_own_file(path), kind)


def decode_bytes(path: Path, data: bytes, kind: type[T]) -> T:
    """The same of bytes that are read already."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RegionError, RecursionError) as error:
        fault = "it nests too deeply" if isinstance(error, RecursionError) else str(error)
        raise damaged(path, fault) from error
