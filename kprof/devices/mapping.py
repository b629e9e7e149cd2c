"""A file as memory: it outlives the process that writes it, and kernels on the CPU may write it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import weakref
from pathlib import Path
from typing import Final

import numpy as np

from kprof.private import new_file, open_plain, opened, remove

_MAP_FIXED: Final = 0x10
_READ_AND_WRITE: Final = mmap.PROT_READ | mmap.PROT_WRITE
# Python's own mmap keeps a descriptor, which the workload may close and open as something else.
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class SharedFile:
    """A new file of zeros, mapped for as long as somebody has `content` (uint8, `size_bytes`), and
    locked meanwhile: a mapping keeps its file open. It can grow, by memory at another address.

    Only its user can read it. Raises OSError where there is no room: all of the room is taken at
    once, because a hole would end the process (SIGBUS) when the disk is full.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        file = new_file(path)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._made = os.fstat(file)
            # With their offsets in the file.
            self._mapped: list[tuple[np.ndarray, int]] = []
            self.content = self._add(file, 0, size_bytes)
        except OSError:
            self.remove()
            raise
        finally:
            os.close(file)
        self.address = self.content.ctypes.data

    def grow(self, offset: int, size_bytes: int) -> np.ndarray:
        """More zeros, from `offset` on, which is the end and that of a page; raises OSError."""
        with opened(self.path, os.O_RDWR) as file:
            if not os.path.samestat(os.fstat(file), self._made):
                raise FileNotFoundError(errno.ENOENT, "another file has its name", str(self.path))
            return self._add(file, offset, size_bytes)

    def _add(self, file: int, offset: int, size_bytes: int) -> np.ndarray:
        os.posix_fallocate(file, offset, size_bytes)
        address = _map(None, size_bytes, mmap.MAP_SHARED, file, offset)
        memory = (ctypes.c_uint8 * size_bytes).from_address(address)
        weakref.finalize(memory, _libc.munmap, address, size_bytes).atexit = False
        content = np.ctypeslib.as_array(memory)
        self._mapped.append((content, offset))
        return content

    def remove(self) -> None:
        """Remove the file; the memory stays."""
        with contextlib.suppress(OSError):
            remove(self.path)

    def make_private(self) -> None:
        """Give this process, a forked child, a copy of its own at the same addresses: zeros where
        the file is gone, or another one has its name, which may be shorter."""
        file = -1
        with contextlib.suppress(OSError):
            file = open_plain(self.path, os.O_RDWR)
        try:
            is_ours = file >= 0 and os.path.samestat(os.fstat(file), self._made)
            flags = mmap.MAP_PRIVATE | _MAP_FIXED | (0 if is_ours else mmap.MAP_ANONYMOUS)
            for content, offset in self._mapped:
                where = content.ctypes.data, content.nbytes
                _map(*where, flags, file if is_ours else -1, offset)
        finally:
            if file >= 0:
                os.close(file)


def _map(address: int | None, size_bytes: int, flags: int, file: int, offset: int) -> int:
    mapped = _libc.mmap(address, size_bytes, _READ_AND_WRITE, flags, file, offset)
    if mapped in (None, ctypes.c_void_p(-1).value):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(mapped)
