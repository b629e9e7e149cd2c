"""Warp widths that the kernel tests run with: the CPU target's, or the one of the machine code that
runs in its place.

`make amd-test` builds gfx942 code for what these tests build for the CPU target, and says how wide
its warps are.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

_WIDTH_OF_MACHINE_CODE: Final = int(os.environ.get("KPROF_TEST_WARP_WIDTH", "0"))
WARP_WIDTHS: Final = [_WIDTH_OF_MACHINE_CODE] if _WIDTH_OF_MACHINE_CODE else [32, 64]
WARP_WIDTH: Final = WARP_WIDTHS[0]  # of tests that look at one width only
IS_CPU_TARGET: Final = not _WIDTH_OF_MACHINE_CODE

needs_machine_code = pytest.mark.skipif(
    IS_CPU_TARGET, reason="looks at a GPU's registers: make amd-test runs it"
)


def warps_of(num_threads: int) -> int:
    """Warps in a block of so many threads."""
    return -(-num_threads // WARP_WIDTH)
