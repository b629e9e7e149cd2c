"""The matmul as a call on tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

import kprof.triton as kp
from instrumented_kernels.triton_matmul.kernels import persistent_matmul, regions
from kprof.devices.on_use import torch
from kprof.errors import RecorderError

NUM_WARPS: Final = 8
# A slot is released while the product of the next one runs. Shared memory has room for four.
_STAGES: Final = range(2, 5)


@dataclass(frozen=True)
class Tile:
    """The tiles that a program multiplies at a time: (m, k) of A by (k, n) of B."""

    m: int = 128
    n: int = 256
    k: int = 64


TILE: Final = Tile()


def descriptor(tensor: Any, rows: int, columns: int) -> TensorDescriptor:
    """The copy engine's descriptor for blocks of (rows, columns) in an fp16 matrix."""
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.float16)
    return TensorDescriptor(
        tensor, list(tensor.shape), list(tensor.stride()), [rows, columns], layout
    )


class Matmul:
    """C = A @ B for (m, k) and (k, n) of fp16 on a Hopper GPU.

    A ring of `stages` slots of 48 KiB lies between loads and tensor cores. With `in_loop` every
    wait for a slot is also an event. Raises RecorderError for shapes that are not multiples of the
    tiles, and unless there are 2 to 4 stages.
    """

    def __init__(self, a: torch.Tensor, b: torch.Tensor, *, stages: int, in_loop: bool) -> None:
        (m, k), (_, n) = a.shape, b.shape
        if m % TILE.m or n % TILE.n or k % TILE.k:
            raise RecorderError(
                f"{m} x {k} by {k} x {n} is not divided by tiles of {TILE.m} x {TILE.k} and "
                f"{TILE.k} x {TILE.n}"
            )
        if stages not in _STAGES:
            raise RecorderError(
                f"a ring has {_STAGES[0]} to {_STAGES[-1]} places, not {stages}: "
                "one is read while the next is filled"
            )
        self.c = a.new_empty((m, n))
        self._shape = m, n, k
        self._a, self._b = descriptor(a, TILE.m, TILE.k), descriptor(b, TILE.k, TILE.n)
        self._constants = {"STAGES": stages, "IN_LOOP": in_loop}
        self._num_tiles = m // TILE.m * (n // TILE.n)
        # The end of the product and of the store, and the wait before every step.
        self._events_per_tile = 2 + in_loop * (k // TILE.k)

    def __call__(self, num_programs: int, recorder: Any) -> torch.Tensor:
        """One launch."""
        prof = kp.buffer(
            "persistent_matmul", num_programs, regions, tracks_per_program=2, recorder=recorder
        )
        persistent_matmul[(num_programs,)](
            self._a, self._b, self.c, *self._shape, prof, num_warps=NUM_WARPS,
            AT_MOST=self.most_events(num_programs), **self._constants,
        )  # fmt: skip
        return self.c

    def most_events(self, num_programs: int) -> int:
        """Of a role of a program, with so many programs."""
        return -(-self._num_tiles // num_programs) * self._events_per_tile
