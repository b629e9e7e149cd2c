"""Rows of launches: where they lie in memory, row n % ROWS_PER_FILE of file n // ROWS_PER_FILE is
launch n. The number of a replay has an empty row."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

# The number comes last: a row without it was not finished.
LAUNCH: Final = np.dtype(
    [
        ("kernel", "<u4"),
        ("table", "<u4"),
        ("ordinal", "<i8"),
        ("num_blocks", "<i8"),
        ("threads_per_block", "<i8"),
        ("number_plus_1", "<i8"),
    ]
)
_ROW: Final = struct.Struct("<IIqqqq")
ROW_BYTES: Final = _ROW.size
ROWS_PER_FILE: Final = 8192
FILE_BYTES: Final = ROWS_PER_FILE * ROW_BYTES
pack_row = _ROW.pack_into

assert LAUNCH.itemsize == ROW_BYTES


def new_rows() -> memoryview:
    """Rows that end with the process."""
    return memoryview(bytearray(FILE_BYTES))
