"""The beginning of a file that is to be imported: what formats are recognised by."""

from __future__ import annotations

import functools
import gzip
import io
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kprof.capture.files import refuse_special
from kprof.errors import ForeignFormatError
from kprof.importers.reading import words_of

_HEAD_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Sample:
    """The first MiB of a file, unpacked if it is gzipped; of a folder, the names in it."""

    path: Path
    head: bytes = b""
    names: tuple[str, ...] = ()

    @staticmethod
    def of(path: Path) -> Sample:
        """Raises ForeignFormatError for what cannot be read."""
        try:
            if path.is_dir():
                return Sample(path, names=tuple(sorted(each.name for each in path.iterdir())))
            refuse_special(path)
            with path.open("rb") as file:
                head = file.read(_HEAD_BYTES)
        except (OSError, ValueError) as error:
            raise ForeignFormatError(f"cannot read {path}: {error}") from error
        return Sample(path, _unpacked(head) if head[:2] == b"\x1f\x8b" else head)

    @functools.cached_property
    def is_json(self) -> bool:
        """Whether it begins as JSON."""
        return self.head[:64].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")

    def has(self, *keys: str) -> bool:
        """Whether it is JSON that has each of these as a quoted word."""
        return self.is_json and all(f'"{key}"'.encode() in self.head for key in keys)

    def words(self, dtype: str) -> NDArray[Any]:
        """The numbers of a buffer, shape (n,); none where it is no such buffer."""
        if self.is_json:
            return np.zeros(0, dtype)
        try:
            return words_of(self.head, dtype, is_head=True).reshape(-1)
        except ValueError:
            return np.zeros(0, dtype)

    def matches(self, pattern: str) -> bool:
        """Whether its name, or in a folder one of the names, matches from end to end."""
        return any(re.fullmatch(pattern, name) for name in (self.path.name, *self.names))


def _unpacked(head: bytes) -> bytes:
    """As much as the packed bytes give; nothing if they are damaged."""
    found = io.BytesIO()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(head)) as packed:
            while found.tell() < _HEAD_BYTES and (part := packed.read1(1 << 16)):
                found.write(part)
    except (OSError, EOFError, zlib.error):
        pass
    return found.getvalue()[:_HEAD_BYTES]


def share(fits: Iterable[bool] | NDArray[np.bool_]) -> float:
    """The share of what fits, 0 for nothing at all."""
    array = np.asarray(fits)
    return float(array.mean()) if array.size else 0.0
