"""The kernel of tests/support/announced: blocks that work on tiles, of which one may be told to stand still."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "announced"
THREADS: Final = 128


class Arguments(ctypes.Structure):
    """Block `block` stands between tiles, once it has set the first of two `words`, until the second is set."""

    _fields_ = [
        ("words", ctypes.c_uint64),
        ("block", ctypes.c_uint32),
        ("num_tiles", ctypes.c_uint32),
        ("is_per_block", ctypes.c_uint32),
    ]
