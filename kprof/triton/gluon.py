"""Which of the program's threads a Gluon partition has."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

WARP_SIZE = gl.constexpr(32)


@gluon.jit
def first_thread(num_warps: gl.constexpr) -> gl.tensor:
    """The index of the calling partition's first thread.

    Each of its threads has one element of the tensor.
    """
    layout: gl.constexpr = gl.BlockedLayout([1], [WARP_SIZE], [num_warps], [0])
    numbers = gl.arange(0, WARP_SIZE * num_warps, layout=layout)
    threads = gl.inline_asm_elementwise(
        "mov.u32 $0, %tid.x;", "=r,r", [numbers], dtype=gl.int32, is_pure=True, pack=1
    )
    return gl.min(threads, 0)


@gluon.jit
def warp_of(thread: gl.tensor) -> gl.tensor:
    """The index of a thread's warp in the program."""
    return thread // WARP_SIZE
