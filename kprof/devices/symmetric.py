"""Symmetric memory: the same number of bytes on every rank, each part writable by all ranks.

An object is at the same offset on every rank, so a kernel needs only the bases. Where the ranks are
decides how:

    threads of one process       plain memory, addresses exchanged
    processes of one host, CPU   files in shared memory, mapped by all; unlinked at once, so that
                                 none is left behind
    processes of one host, GPU   an allocation per GPU, which the others open through an IPC handle
                                 (peer_memory.hip)
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import socket
from pathlib import Path
from typing import Any, Final

import numpy as np

from kprof.devices.build import BuildOptions, error_text, load_library
from kprof.devices.cache import complain
from kprof.devices.groups import Group
from kprof.devices.targets import Target, target_of_device
from kprof.errors import TargetError
from kprof.private import heap_file, opened

ALIGNMENT_BYTES: Final = 4096
_PEER_SOURCE: Final = Path(__file__).parents[1] / "kernels" / "peer_memory.hip"
_CACHED: Final = "fine-grained"
_SECOND_CHOICE: Final = (
    "memory that peers write is fine-grained, which is cached: this runtime has no uncached memory "
    "that other processes can open"
)


class SymmetricHeap:
    """`size_bytes` of zeroed memory per rank; this process sees rank r's part at `bases[r]`.

    Creation is collective. `device` is "cpu" or the current GPU as a torch device. Raises
    TargetError when the ranks are on several hosts, memory is too small, or GPUs cannot reach each
    other.
    """

    def __init__(self, group: Group, size_bytes: int, device: str = "cpu") -> None:
        self.size_bytes = -(-max(size_bytes, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.bases: tuple[int, ...] = ()
        # Of GPUs: "uncached" or "fine-grained" on AMD, "device" on NVIDIA.
        self.memory_kind = "host"
        self._keep: list[Any] = []
        places = group.all_gather((socket.gethostname(), os.getpid(), self.size_bytes))
        _check_places(places)
        if device != "cpu":
            self._keep.append(_PeerMemory(group, self.size_bytes, target_of_device(device)))
            self.bases, self.memory_kind = self._keep[0].bases, self._keep[0].kind
        elif all(place[1] == os.getpid() for place in places):
            self.bases = tuple(group.all_gather(self._allocate()))
            # As many barriers as with files: other hosts of the group may use those.
            group.barrier()
        else:
            self.bases = self._map_files(group)
        group.barrier()

    def close(self) -> None:
        """Free the memory. The caller makes sure that no rank still writes to it."""
        for memory in self._keep:
            if isinstance(memory, _PeerMemory):
                memory.close()
        self._keep.clear()
        self.bases = ()

    def _allocate(self) -> int:
        memory = np.zeros(self.size_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
        self._keep.append(memory)
        return int(-(-memory.ctypes.data // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)

    def _map_files(self, group: Group) -> tuple[int, ...]:
        name, error = f"{os.getpid()}-{id(self):x}", ""
        with contextlib.ExitStack() as stack:
            try:
                name = str(stack.enter_context(heap_file(name, self.size_bytes)))
            except OSError as refused:
                error = _describe_refusal(refused, self.size_bytes)
            answers = group.all_gather((name, error))
            failures = [answer[1] for answer in answers if answer[1]]
            if failures:
                raise TargetError(failures[0])
            bases = tuple(self._map(Path(name)) for name, _ in answers)
            group.barrier()
        return bases

    def _map(self, path: Path) -> int:
        with opened(path, os.O_RDWR) as file:
            mapping = mmap.mmap(file, self.size_bytes)
        view = np.frombuffer(mapping, dtype=np.uint8)
        self._keep.append(view)
        return int(view.ctypes.data)


class _PeerMemory:
    """One GPU's allocation and the other ranks' allocations, opened."""

    def __init__(self, group: Group, size_bytes: int, target: Target) -> None:
        self._library = load_library(_PEER_SOURCE, BuildOptions(target))
        self._rank = group.rank
        own = ctypes.c_void_p()
        error = self._library.kprof_peer_allocate(ctypes.byref(own), ctypes.c_uint64(size_bytes))
        handle = ctypes.create_string_buffer(self._library.kprof_peer_handle_bytes())
        self._library.kprof_peer_memory_kind.restype = ctypes.c_char_p
        self.kind = self._library.kprof_peer_memory_kind().decode()
        if self.kind == _CACHED and self._rank == 0:
            complain(_SECOND_CHOICE)
        error = error or self._library.kprof_peer_export(handle, own)
        answers = group.all_gather((handle.raw, error))
        error = next((code for _, code in answers if code), 0)
        self._check(error, f"allocating {size_bytes >> 20} MiB to share")
        self.bases = tuple(
            int(own.value or 0) if rank == self._rank else self._open(answer[0])
            for rank, answer in enumerate(answers)
        )

    def close(self) -> None:
        """Close what was opened and free what was allocated."""
        for rank, base in enumerate(self.bases):
            name = "kprof_peer_free" if rank == self._rank else "kprof_peer_close"
            getattr(self._library, name)(ctypes.c_void_p(base))

    def _open(self, handle: bytes) -> int:
        memory = ctypes.c_void_p()
        error = self._library.kprof_peer_import(ctypes.byref(memory), handle)
        self._check(error, "opening a peer GPU's memory")
        return int(memory.value or 0)

    def _check(self, error: int, doing: str) -> None:
        if error:
            raise TargetError(
                f"{doing} failed: {error_text(self._library, error)}; peer access between all GPUs "
                "of the host is needed"
            )


def _describe_refusal(error: OSError, size_bytes: int) -> str:
    return (
        f"cannot reserve {size_bytes} bytes of shared memory in /dev/shm: "
        f"{error.strerror}; use a smaller shape or fewer ranks, or enlarge it"
    )


def _check_places(places: list[tuple[str, int, int]]) -> None:
    hosts = sorted({place[0] for place in places})
    if len(hosts) > 1:
        raise TargetError(
            f"symmetric memory needs all ranks on one host, and they are on {', '.join(hosts)}; "
            "start the ranks on one machine"
        )
    sizes = sorted({place[2] for place in places})
    if len(sizes) > 1:
        raise TargetError(
            f"ranks ask for symmetric heaps of different sizes ({sizes[0]} and {sizes[-1]} bytes); "
            "all ranks must be created with the same shape"
        )
