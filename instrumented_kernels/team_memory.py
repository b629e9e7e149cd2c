"""A plan's memory: a heap that peers write, a workspace of this rank, and a failure report."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from instrumented_kernels.layouts import MAX_RANKS, Failure, Layout
from kprof.devices import gpu
from kprof.devices.memory import Memory, allocate
from kprof.devices.symmetric import SymmetricHeap
from kprof.errors import ArenaError, TargetError

if TYPE_CHECKING:
    from kprof.groups import Group


class TeamMemory:
    """`heap_bytes` of zeroed memory that all ranks of the group can write, and `workspace_bytes` of
    this rank's own.

    `failure` is what kernels tell the host; reading it waits for nothing. Creation is collective.
    Raises TargetError of kprof when there is too little memory or ranks cannot reach each other.
    """

    def __init__(self, group: Group, device: str, *, heap_bytes: int, workspace_bytes: int) -> None:
        self._group, self._device = group, device
        self._heap = SymmetricHeap(group, heap_bytes, device)
        self._workspace: Memory | None = _allocate_workspace(workspace_bytes, device)
        self._pinned = None if device == "cpu" else _pinned(ctypes.sizeof(Failure))
        self.failure: Layout = (
            Failure() if self._pinned is None else Failure.from_address(self._pinned.data_ptr())
        )
        # Zeros as long as nothing is wrong: what is cheapest to look at on every call.
        words = (ctypes.c_uint64 * 2).from_address(ctypes.addressof(self.failure))
        self.alarm = memoryview(words).cast("B").cast("Q")
        self.is_open = True
        self.heaps = (ctypes.c_void_p * MAX_RANKS)(*self._heap.bases)

    @property
    def workspace_address(self) -> int:
        """Where the workspace lies."""
        return self.check_open().address

    def read(self, offset: int, num_bytes: int, dtype: Any = np.uint8) -> np.ndarray:
        """A copy of a part of the workspace, after all launches so far."""
        return self.check_open().read(offset, offset + num_bytes).view(dtype)

    def synchronize(self) -> None:
        """Wait for all launches on this rank."""
        gpu.synchronize(self._device)

    def retire(self) -> None:
        """Stop using the memory. Peers may still write to the heap: only `close` frees that."""
        self._workspace, self.is_open = None, False

    def close(self) -> None:
        """Free the memory. Collective: no rank may still write to another's heap."""
        self.synchronize()
        self._group.barrier()
        self.abandon()

    def abandon(self) -> None:
        """Free the memory of a group that cannot meet any more.

        The caller knows that nobody writes to it.
        """
        self._heap.close()
        self._workspace, self.is_open = None, False

    def check_open(self) -> Memory:
        """The workspace; raises RuntimeError when it is gone."""
        if self._workspace is None:
            raise RuntimeError(
                "the plan was closed, or an earlier call of it failed; create a new plan "
                "(close_plans() on all ranks drops those that the functions keep)"
            )
        return self._workspace


def _allocate_workspace(num_bytes: int, device: str) -> Memory:
    try:
        return allocate(num_bytes, device)
    except ArenaError as error:
        raise TargetError(
            f"no room for a workspace of {num_bytes >> 20} MiB on {device}; "
            "use a smaller shape or more ranks"
        ) from error


def _pinned(num_bytes: int) -> Any:
    """Memory of the host that kernels can write; zeros."""
    import torch

    return torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True)
