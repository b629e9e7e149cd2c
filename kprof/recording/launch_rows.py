"""Rows of launches in memory that outlives the process.

Launch n has row n % ROWS_PER_FILE of file n // ROWS_PER_FILE until it is in a part, and row
n % NUM_RECENT of those for whoever looks for hangs. The number of a replay has an empty row.
"""

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

RECENT: Final = np.dtype(
    [("kernel", "<u4"), ("num_blocks", "<u4"), ("ordinal", "<i8"), ("number_plus_1", "<i8")]
)
_RECENT: Final = struct.Struct("<IIqq")
RECENT_BYTES: Final = _RECENT.size
NUM_RECENT: Final = 1024
pack_recent = _RECENT.pack_into

assert LAUNCH.itemsize == ROW_BYTES
assert RECENT.itemsize == RECENT_BYTES


def new_rows() -> memoryview:
    """Rows that end with the process."""
    return memoryview(bytearray(FILE_BYTES))
