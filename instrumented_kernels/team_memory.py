"""A plan's memory: a heap that peers write, and a workspace of this rank."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from instrumented_kernels.layouts import MAX_RANKS
from kprof.devices import gpu
from kprof.devices.memory import Memory, allocate
from kprof.devices.symmetric import SymmetricHeap
from kprof.errors import ArenaError, TargetError

if TYPE_CHECKING:
    from kprof.devices.groups import Group


class TeamMemory:
    """A zeroed heap of `heap_bytes` that all ranks of the group can write, and a workspace of
    `workspace_bytes` for this rank.

    Creation is collective. Raises kprof's TargetError if memory is short or ranks cannot access
    each other.
    """

    def __init__(self, group: Group, device: str, *, heap_bytes: int, workspace_bytes: int) -> None:
        self._group, self._device = group, device
        self._heap = SymmetricHeap(group, heap_bytes, device)
        try:
            self._workspace: Memory | None = allocate(workspace_bytes, device)
        except ArenaError as error:
            raise TargetError(
                f"no room for a workspace of {workspace_bytes >> 20} MiB on {device}; "
                "use a smaller shape or more ranks"
            ) from error
        self.is_open = True
        self.heaps = (ctypes.c_void_p * MAX_RANKS)(*self._heap.bases)

    @property
    def workspace_address(self) -> int:
        """The address of the workspace."""
        return self.check_open().address

    def retire(self) -> None:
        """Stop using the memory. Peers may still write to the heap, which only `close` frees."""
        self._workspace, self.is_open = None, False

    def close(self) -> None:
        """Free the memory. Collective: no rank may still write to another's heap."""
        gpu.synchronize(self._device)
        self._group.barrier()
        self.abandon()

    def abandon(self) -> None:
        """Free the memory of a group that can no longer synchronise.

        The caller must know that nobody writes to it.
        """
        self._heap.close()
        self._workspace, self.is_open = None, False

    def check_open(self) -> Memory:
        """The workspace. Raises RuntimeError if it is closed."""
        if self._workspace is None:
            raise RuntimeError(
                "the plan was closed, or an earlier call of it failed; create a new plan "
                "(close_plans() on all ranks drops those that the functions keep)"
            )
        return self._workspace
