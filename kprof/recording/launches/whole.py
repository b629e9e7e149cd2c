"""Whole numbers that users pass: also those of numpy, which JSON and ctypes do not take.

Does not import numpy, because workloads that record nothing import it, too.
"""

from __future__ import annotations

import contextlib
from operator import index
from typing import SupportsIndex, cast


def whole(value: object) -> int | None:
    """The value as an integer of Python, None where it is no whole number."""
    with contextlib.suppress(TypeError):
        return index(cast(SupportsIndex, value))
    return None
