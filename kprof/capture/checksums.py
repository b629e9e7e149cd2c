"""Checksums: the manifest has one of each file from which numbers are read, and one of itself.

A byte that a disk, a copy or an editor changed may still decode, into other numbers. CRC-32 finds
such accidents. It stops nobody who writes a checksum to go with what he changed: every other check
is made for any content.

Captures of older versions have no checksums. What has none is not compared.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from kprof.capture.files import check_own_file, unreadable
from kprof.capture.manifest import FileChecksum
from kprof.errors import CorruptCaptureError

# The manifest's checksum is of everything in it but this.
_OWN_KEY: Final = "checksum"
_PATTERNS: Final = (
    "rank-*.parquet",
    "summary-*.parquet",
    "torch-rank-*.json.gz",
    "host-rank-*.json.gz",
)
# What else one can do when the file of a rank is damaged.
TO_READ_OTHERS: Final = ", or name other ranks with --ranks to read those alone"
_BLOCK_BYTES: Final = 1 << 20
_MAX_WORKERS: Final = 8

Result = TypeVar("Result")


class Checksums:
    """What the files of a capture should be. A file that is as it was written is read once."""

    def __init__(self, expected: Iterable[FileChecksum] = ()) -> None:
        self._expected = {entry.name: entry for entry in expected}
        self._trusted: set[str] = set()

    def trust(self, paths: Iterable[Path]) -> None:
        """Do not read these files: it is known that they are as they were written."""
        self._trusted.update(path.name for path in paths)

    def unread(self, paths: Iterable[Path]) -> dict[Path, FileChecksum]:
        """Those of the files of which nobody knows yet that they are as they were written."""
        return {
            path: self._expected[path.name]
            for path in paths
            if path.name in self._expected and path.name not in self._trusted
        }

    def check_size(self, path: Path) -> None:
        """Raises CorruptCaptureError where a file has another size; reads nothing."""
        entry = self._expected.get(path.name)
        if entry is not None and check_own_file(path) != entry.size_bytes:
            raise changed(path)

    def changed(self, paths: Iterable[Path]) -> tuple[Path, ...]:
        """The files that are not as they were written; raises CorruptCaptureError where one cannot
        be read."""
        unread = self.unread(paths)
        are_same = _each(is_same, list(unread.items()))
        self.trust(path for path, same in zip(unread, are_same, strict=True) if same)
        return tuple(path for path, same in zip(unread, are_same, strict=True) if not same)

    def faults(self, paths: Collection[Path]) -> dict[Path, str]:
        """Those of the files that are not as they were written, or cannot be read, and why."""

        def fault(path: Path) -> str:
            try:
                return str(changed(path)) if self.changed([path]) else ""
            except CorruptCaptureError as error:
                return str(error)

        found = _each(fault, [(path,) for path in paths])
        return {path: why for path, why in zip(paths, found, strict=True) if why}

    def check(self, paths: Iterable[Path]) -> None:
        """Raises CorruptCaptureError where a file is not as it was written."""
        for path in self.changed(paths):
            hint = TO_READ_OTHERS if path.name.startswith("rank-") else ""
            raise CorruptCaptureError(f"{changed(path)}{hint}")


def changed(path: Path) -> CorruptCaptureError:
    """The sentence about a file that was changed."""
    return CorruptCaptureError(
        f"{path} was changed after it was written: its checksum does not match; "
        "restore the file or record again"
    )


def is_same(path: Path, expected: FileChecksum) -> bool:
    """Whether a file is as it was written; raises CorruptCaptureError where it cannot be read."""
    return check_own_file(path) == expected.size_bytes and checksum_of(path) == expected


def checksum_of(path: Path) -> FileChecksum:
    """Reads a whole file; raises CorruptCaptureError."""
    check_own_file(path)
    crc, size_bytes = 0, 0
    block = memoryview(bytearray(_BLOCK_BYTES))
    try:
        with path.open("rb", buffering=0) as file:
            while num_read := file.readinto(block):
                crc = zlib.crc32(block[:num_read], crc)
                size_bytes += num_read
    except OSError as error:
        raise unreadable(path, error) from error
    return FileChecksum(path.name, size_bytes, crc)


def checksums_in(directory: Path) -> tuple[FileChecksum, ...]:
    """Of all files with numbers but the manifest; raises CorruptCaptureError."""
    return tuple(_each(checksum_of, [(path,) for path in files_with_numbers(directory)]))


def files_with_numbers(directory: Path) -> list[Path]:
    """The files that have a checksum in the manifest, by name."""
    return sorted(path for pattern in _PATTERNS for path in directory.glob(pattern))


def _each(function: Callable[..., Result], arguments: Sequence[tuple[Any, ...]]) -> list[Result]:
    """Call a function that reads a file, some at a time: zlib lets other threads run."""
    if len(arguments) < 2:
        return [function(*each) for each in arguments]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_MAX_WORKERS, len(arguments), os.cpu_count() or 1)) as pool:
        return list(pool.map(function, *zip(*arguments, strict=True)))


def checksum_of_manifest(data: bytes) -> int:
    """The checksum of a manifest's values, however the JSON is laid out.

    Raises msgspec.DecodeError and RecursionError.
    """
    content: Any = msgspec.json.decode(data)
    rest = {name: value for name, value in content.items() if name != _OWN_KEY}
    return zlib.crc32(msgspec.json.encode(rest, order="sorted"))


def check_manifest_checksum(path: Path, data: bytes, expected: int | None) -> None:
    """Raises CorruptCaptureError where a manifest was changed after it was written."""
    if expected is None:
        return
    found = None
    # What kprof never writes, in fields that it does not know.
    with contextlib.suppress(msgspec.MsgspecError, RecursionError, ValueError, OverflowError):
        found = checksum_of_manifest(data)
    if found != expected:
        raise CorruptCaptureError(
            f"{path} was changed after it was written: its checksum does not match; restore the "
            f'file or record again, or remove "{_OWN_KEY}" from it if you edited it on purpose'
        )
