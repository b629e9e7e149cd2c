"""Reading files that others made: JSON with types checked, and buffers of numbers. Never pickle."""

from __future__ import annotations

import io
import math
import zlib
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from kprof.capture.files import read_maybe_gzipped
from kprof.errors import ForeignFormatError

T = TypeVar("T")
_NPY_MAGIC: Final = b"\x93NUMPY"


def read_bytes(path: Path, what: str) -> bytes:
    """The bytes of a file, unpacked if it is gzipped; `what` names the format in errors."""
    try:
        return read_maybe_gzipped(path)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ForeignFormatError(f"cannot read {path} as {what}: {error}") from error


def read_json(path: Path, of: type[T], what: str) -> T:
    """A JSON file as `of`, which msgspec checks; raises ForeignFormatError."""
    return parse_json(read_bytes(path, what), of, path, what)


def parse_json(data: bytes, of: type[T], path: Path, what: str) -> T:
    """The same of bytes that are read already."""
    try:
        return msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"), type=of)
    except (ValueError, RecursionError) as error:
        raise ForeignFormatError(f"cannot read {path} as {what}: {error}") from error


def read_words(path: Path, dtype: str, what: str) -> NDArray[Any]:
    """The numbers of a .npy file or of bare bytes, shape (n,); raises ForeignFormatError."""
    return read_array(path, dtype, what).reshape(-1)


def read_array(path: Path, dtype: str, what: str) -> NDArray[Any]:
    """The same in the shape that a .npy file says."""
    data = read_bytes(path, what)
    try:
        return words_of(data, dtype)
    except ValueError as error:
        raise ForeignFormatError(
            f"cannot read {path} as {what}: {error}; expected numbers, bare or as .npy"
        ) from error


def words_of(data: bytes, dtype: str, *, is_head: bool = False) -> NDArray[Any]:
    """Numbers of .npy or bare bytes. Of a head, the end may be missing. Raises ValueError."""
    wanted = np.dtype(dtype)
    if not data.startswith(_NPY_MAGIC):
        return np.frombuffer(data[: len(data) // wanted.itemsize * wanted.itemsize], wanted)
    file = io.BytesIO(data)
    shape, is_fortran, found = _npy_header(file)
    # Signed and unsigned words of one size are the same bytes.
    if found.kind not in "iu" or found.itemsize != wanted.itemsize or is_fortran:
        raise ValueError(f"it holds {found}, expected {wanted}")
    num_words = (len(data) - file.tell()) // wanted.itemsize
    words = np.frombuffer(data, wanted, offset=file.tell(), count=num_words)
    if is_head:
        return words
    if len(words) < math.prod(shape):
        raise ValueError(f"it ends after {len(words):,} of {math.prod(shape):,} numbers")
    return words[: math.prod(shape)].reshape(shape)


def _npy_header(file: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, is_fortran, dtype = read(file)
        return tuple(int(size) for size in shape), is_fortran, dtype
    except Exception as error:
        # numpy parses the header as Python, and a damaged one raises whatever that raises.
        raise ValueError(str(error)) from error
