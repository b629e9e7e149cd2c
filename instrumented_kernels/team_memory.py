"""The memory of one plan: a symmetric heap that peers write, and a workspace that only this rank touches."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from instrumented_kernels.kernel_library import MAX_RANKS
from kprof.devices.memory import Memory, allocate
from kprof.devices.symmetric import SymmetricHeap
from kprof.errors import ArenaError, TargetError

if TYPE_CHECKING:
    from kprof.groups import Group
    from kprof.regions import RegionTable


class PeerTimeoutError(RuntimeError):
    """A rank waited for a peer longer than the limit; the message says who, for whom and for what."""


class _Timeout(ctypes.Structure):
    """signals::Timeout of device/signals.h."""

    _fields_ = [
        (name, ctypes.c_uint32)
        for name in (
            "is_set",
            "region",
            "peer",
            "slot",
            "epoch",
            "waited_ms",
            "reserved0",
            "reserved1",
        )
    ]


class TeamMemory:
    """`heap_bytes` of zeroed memory that all ranks of the group can write, and `workspace_bytes` of this rank's own.

    Creation is collective. The workspace begins with the signals::Timeout of this rank. Raises TargetError of kprof
    when there is too little memory or ranks cannot reach each other.
    """

    def __init__(self, group: Group, device: str, *, heap_bytes: int, workspace_bytes: int) -> None:
        self._group = group
        self._heap = SymmetricHeap(group, heap_bytes, device)
        self._workspace: Memory | None = _allocate_workspace(workspace_bytes, device)
        self.heaps = (ctypes.c_void_p * MAX_RANKS)(*self._heap.bases)

    @property
    def workspace_address(self) -> int:
        """Where the workspace lies; raises RuntimeError when the memory is gone."""
        return self._open().address

    def read(self, offset: int, num_bytes: int, dtype: Any = np.uint8) -> np.ndarray:
        """A copy of a part of the workspace, after all launches so far."""
        return self._open().read(offset, offset + num_bytes).view(dtype)

    def raise_if_timed_out(self, regions: RegionTable) -> None:
        """Wait for all launches on this rank; raise PeerTimeoutError when one gave up waiting for a peer.

        The memory is void after that: what the peer owed may still arrive.
        """
        timeout = _Timeout.from_buffer_copy(self.read(0, ctypes.sizeof(_Timeout)).tobytes())
        if not timeout.is_set:
            return
        self._workspace = None
        raise PeerTimeoutError(
            f"rank {self._group.rank} waited {timeout.waited_ms / 1e3:.1f} s for rank {timeout.peer}, "
            f"slot {timeout.slot}, epoch {timeout.epoch}, in {regions[timeout.region].name}; "
            "the results of this call are void"
        )

    def close(self) -> None:
        """Free the memory. Collective: no rank may still write to another's heap."""
        self._group.barrier()
        self.abandon()

    def abandon(self) -> None:
        """Free the memory of a group that cannot meet any more; the caller knows that nobody writes to it."""
        self._heap.close()
        self._workspace = None

    def _open(self) -> Memory:
        if self._workspace is None:
            raise RuntimeError(
                "the plan was closed, or a peer timed out in an earlier call; create a new plan"
            )
        return self._workspace


def _allocate_workspace(num_bytes: int, device: str) -> Memory:
    try:
        return allocate(num_bytes, device)
    except ArenaError as error:
        raise TargetError(
            f"no room for a workspace of {num_bytes >> 20} MiB on {device}; use a smaller shape or more ranks"
        ) from error
