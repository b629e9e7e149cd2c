"""The collectives as calls on tensors. They own the heap, count calls and pass buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

import kprof.triton as kp
from instrumented_kernels.triton_collectives.kernels import dispatch, one_shot, regions, two_shot
from kprof.devices.groups import Group
from kprof.devices.symmetric import SymmetricHeap
from kprof.errors import RecorderError

VARIANTS: Final = ("oneshot", "twoshot")
_NUM_COPIES: Final = 2
_FLOAT_BYTES: Final = 4
_ALIGNMENT: Final = 16
_BLOCK: Final = 1024
_NUM_SENDERS: Final = 4


class Heap(Protocol):
    """Memory on every rank that all ranks can write. `bases[r]` is the address of rank r's part."""

    bases: tuple[int, ...]


class TorchHeap:
    """torch's symmetric memory as a heap, for GPUs of one host in the default process group."""

    def __init__(self, size_bytes: int, device: str) -> None:
        import torch.distributed._symmetric_memory as symmetric

        self._tensor = symmetric.empty(size_bytes, dtype=torch.uint8, device=torch.device(device))
        self._tensor.zero_()
        group = torch.distributed.group.WORLD
        assert group is not None
        handle = symmetric.rendezvous(self._tensor, group)
        self.bases = tuple(int(base) for base in handle.buffer_ptrs)
        torch.cuda.synchronize(device)
        torch.distributed.barrier()


@dataclass(frozen=True)
class Layout:
    """Offsets of the heap's parts, in bytes. Data, sums and rows exist twice."""

    max_numbers: int
    max_programs: int
    world_size: int

    @property
    def data_bytes(self) -> int:
        """The size of one copy of the data. Both begin at multiples of 16: one build does both."""
        return -(-self.max_numbers * _FLOAT_BYTES // _ALIGNMENT) * _ALIGNMENT

    @property
    def flags_bytes(self) -> int:
        """The size of the flags of all ranks' programs."""
        return self.world_size * self.max_programs * _FLOAT_BYTES

    def data(self, epoch: int) -> int:
        """The offset of this call's data."""
        return epoch % _NUM_COPIES * self.data_bytes

    def sums(self, epoch: int) -> int:
        """The offset of this call's sums."""
        return (_NUM_COPIES + epoch % _NUM_COPIES) * self.data_bytes

    def flags(self, number: int) -> int:
        """The offset of the flags of one kind: 0 one shot, 1 and 2 two shots, 3 rows, 4 counts."""
        return 2 * _NUM_COPIES * self.data_bytes + number * self.flags_bytes

    @property
    def size_bytes(self) -> int:
        """The size of the heap."""
        return self.flags(5)


class Collectives:
    """Collectives for up to `max_numbers` fp32 numbers. Creation and every call are collective.

    `heap_of` makes the shared memory; the default is kprof's.
    """

    def __init__(
        self,
        group: Group,
        device: str,
        max_numbers: int,
        heap_of: Any = None,
    ) -> None:
        self._group = group
        self._layout = Layout(max_numbers, max(max_numbers // 64, 64), group.world_size)
        size_bytes = self._layout.size_bytes
        self._heap: Heap = (
            heap_of(size_bytes, device) if heap_of else SymmetricHeap(group, size_bytes, device)
        )
        self._bases = torch.tensor(self._heap.bases, dtype=torch.int64, device=device)
        # Counts calls of all kinds, because they share the two copies of the data.
        self._num_calls = 0

    def all_reduce(
        self, variant: str, x: torch.Tensor, out: torch.Tensor, recorder: Any
    ) -> torch.Tensor:
        """Stores the sum of all ranks' `x` in `out` (both fp32, contiguous).

        Raises RecorderError if `x` is too large.
        """
        if x.numel() > self._layout.max_numbers:
            raise RecorderError(
                f"{x.numel()} numbers do not fit these collectives, made for "
                f"{self._layout.max_numbers}"
            )
        epoch = self._next()
        world = self._group.world_size
        layout = self._layout
        shared = (x, out, x.numel(), self._bases, self._group.rank, epoch, layout.data(epoch))
        if variant == "oneshot":
            kernel, per_program, offsets = one_shot, _BLOCK, [layout.flags(0)]
        else:
            kernel, per_program = two_shot, _BLOCK * world
            offsets = [layout.sums(epoch), layout.flags(1), layout.flags(2)]
        grid = (-(-x.numel() // per_program),)
        prof = kp.buffer(variant, grid, regions, recorder=recorder)
        kernel[grid](*shared, *offsets, prof, WORLD=world, BLOCK=_BLOCK)
        return out

    def dispatch(
        self, x: torch.Tensor, targets: torch.Tensor, most_rows: int, recorder: Any
    ) -> list[torch.Tensor]:
        """Sends row i of `x` (tokens, hidden) to rank targets[i]. Returns the rows from each rank,
        in its order.

        No rank sends more than `most_rows` to another; `hidden` is a power of two.
        """
        world, hidden = self._group.world_size, x.shape[1]
        rows, counts = _numbered(targets, world)
        out = torch.zeros((world, most_rows, hidden), device=x.device)
        received = torch.zeros(world, dtype=torch.int32, device=x.device)
        epoch = self._next()
        layout = self._layout
        grid = (_NUM_SENDERS + world,)
        dispatch[grid](
            x, targets.to(torch.int32), rows, counts, out, received, len(x), self._bases,
            self._group.rank, epoch, layout.data(epoch), layout.flags(3), layout.flags(4),
            kp.buffer("dispatch", grid, regions, recorder=recorder),
            WORLD=world, MOST_ROWS=most_rows, HIDDEN=hidden, SENDERS=_NUM_SENDERS,
        )  # fmt: skip
        return [out[peer, :count] for peer, count in enumerate(received.tolist())]

    def _next(self) -> int:
        self._num_calls += 1
        return self._num_calls


def _numbered(targets: torch.Tensor, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token's row index at its target, and the number of rows of each target (int32)."""
    is_for = targets[:, None] == torch.arange(world, device=targets.device)[None, :]
    before = is_for.cumsum(0) - 1
    rows = before.gather(1, targets[:, None].long())[:, 0]
    return rows.to(torch.int32), is_for.sum(0).to(torch.int32)
