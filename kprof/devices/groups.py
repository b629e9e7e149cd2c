"""Groups of ranks: who takes part, and how ranks exchange small objects during setup.

Nothing here is on a hot path: kernels communicate through symmetric memory. A group exchanges
memory handles and clock samples.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from kprof.devices.on_use import torch

T = TypeVar("T")


class Group(Protocol):
    """A fixed set of ranks 0 .. world_size - 1. Both methods are collective."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def world_size(self) -> int:
        """How many ranks there are."""

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, by rank."""

    def barrier(self) -> None:
        """Wait until all ranks call this."""


class SoloGroup:
    """One rank alone."""

    rank = 0
    world_size = 1

    def all_gather(self, value: T) -> list[T]:
        """The one value."""
        return [value]

    def barrier(self) -> None:
        """Returns at once."""


class TorchGroup:
    """The ranks of a torch.distributed process group (the default one unless given).

    Holds no reference to the process group, so that destroy_process_group() closes what it had
    open.
    """

    def __init__(self, process_group: Any = None) -> None:
        self._process_group = None if process_group is None else weakref.ref(process_group)
        self.rank: int = torch.distributed.get_rank(process_group)
        self.world_size: int = torch.distributed.get_world_size(process_group)

    @property
    def process_group(self) -> Any:
        """The process group, None for the default one.

        Raises RuntimeError when it was destroyed.
        """
        if self._process_group is None:
            return None
        process_group = self._process_group()
        if process_group is None:
            raise RuntimeError("the process group was destroyed; make a new group")
        return process_group

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, by rank, pickled by torch between the ranks of one job."""
        values: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(values, value, group=self.process_group)
        return values

    def barrier(self) -> None:
        """torch.distributed.barrier."""
        torch.distributed.barrier(group=self.process_group)


class PartOfGroup:
    """Some ranks of a group, in order, numbered from 0. Methods are collective over the whole
    group: all parts must make the same calls."""

    def __init__(self, group: Group, members: Sequence[int]) -> None:
        self._group = group
        self._members = tuple(members)
        self.rank = self._members.index(group.rank)
        self.world_size = len(self._members)

    def all_gather(self, value: T) -> list[T]:
        """The values of the ranks of this part."""
        values = self._group.all_gather(value)
        return [values[member] for member in self._members]

    def barrier(self) -> None:
        """Wait until all ranks of the whole group call this."""
        self._group.barrier()
