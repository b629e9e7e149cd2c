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
# Schedules that a test of the CPU target tries; `make soak` tries many more.
SEEDS: Final = range(1, 1 + int(os.environ.get("KPROF_TEST_SEEDS", "4")))
# An emulator of gfx942 with that GPU's fp8 (EMU_FP8=fnuz); another one takes all fp8 for e4m3fn, makes
# subnormals zero, and lacks the sparse matrix instruction.
HAS_FNUZ: Final = not IS_CPU_TARGET and os.environ.get("EMU_FP8") == "fnuz"
HAS_ALL_FP8: Final = IS_CPU_TARGET or HAS_FNUZ

needs_all_fp8 = pytest.mark.skipif(not HAS_ALL_FP8, reason="this emulator makes subnormals zero")
needs_machine_code = pytest.mark.skipif(
    IS_CPU_TARGET, reason="looks at a GPU's registers: make amd-test runs it"
)


def warps_of(num_threads: int) -> int:
    """Warps in a block of so many threads."""
    return -(-num_threads // WARP_WIDTH)
