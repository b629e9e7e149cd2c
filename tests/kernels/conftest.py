"""Under the emulator of gfx942: shared memory in which every address of 32 bits can be read.

The emulator lets all lanes of a `ds_read` or `ds_write` touch memory, the ones too that EXEC masks off (it drops what
these have read, and writes back what was there). What a masked lane holds as its address is whatever its register held
before, so the real instruction is fine and the emulator ends with a segmentation fault. Each block gets all the
addresses that a lane can name; pages that nobody touches cost nothing.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import zlib
from typing import Any

import pytest

_WINDOW_BYTES = (1 << 32) + mmap.PAGESIZE
_MAP_NORESERVE = 0x4000


def _widen_shared_memory(emulator: Any) -> None:
    allocate, word = emulator.Buffer, emulator.dtypes.uint32

    def buffer(device: str, size: int, dtype: Any, **options: Any) -> Any:
        if dtype is not word or options:
            return allocate(device, size, dtype, **options)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        window = mmap.mmap(-1, _WINDOW_BYTES, flags=flags)
        address = ctypes.addressof(ctypes.c_char.from_buffer(window))
        shared = allocate(device, size, dtype, options=emulator.BufferSpec(external_ptr=address))
        shared.window = window
        return shared

    emulator.Buffer = buffer


if "gfx942" in sys.modules:
    _widen_shared_memory(sys.modules["emulator"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """KPROF_TEST_PART=1/4 leaves the second quarter of the tests, by name."""
    number, _, parts = os.environ.get("KPROF_TEST_PART", "0/1").partition("/")
    items[:] = [
        item for item in items if zlib.crc32(item.nodeid.encode()) % int(parts) == int(number)
    ]
