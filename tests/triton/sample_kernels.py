"""The kernels that the tests compile and record: the benchmark's copy and matmul, marks, and a kernel without kprof."""

from __future__ import annotations

import triton
import triton.language as tl

import kprof.triton as kp
from benchmarks.triton_overhead.kernels import KPROF, PLAIN, copy, matmul
from benchmarks.triton_overhead.kernels import regions as sample_regions

__all__ = [
    "KPROF",
    "PLAIN",
    "copy",
    "mark_regions",
    "marks",
    "matmul",
    "plain_matmul",
    "returns_early",
    "sample_regions",
    "short_marks",
]

mark_regions = kp.Regions()
LEFT = mark_regions.define("left", kind="value")
DONE = mark_regions.define("done", kind="mark", rows=16)


@triton.jit
def marks(prof, n):
    track = kp.open_track(prof)
    for i in range(n):
        track = kp.mark(track, DONE, i)
        if i % 2 == 0:
            track = kp.value(track, LEFT, i)


@triton.jit
def short_marks(prof, counts, AT_MOST: tl.constexpr):
    """As many marks per program as `counts` says."""
    track = kp.open_track(prof, at_most=AT_MOST)
    for i in range(tl.load(counts + tl.program_id(0))):
        track = kp.mark(track, DONE, i)


@triton.jit
def plain_matmul(a, b, c, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """A kernel of somebody else's."""
    tile_m, tile_n = tl.program_id(0), tl.program_id(1)
    rows, columns, depth = (
        tile_m * M + tl.arange(0, M),
        tile_n * N + tl.arange(0, N),
        tl.arange(0, K),
    )
    a_tile = a + rows[:, None] * k + depth[None, :]
    b_tile = b + depth[:, None] * n + columns[None, :]
    total = tl.zeros((M, N), dtype=tl.float32)
    for _ in range(0, k, K):
        total = tl.dot(tl.load(a_tile), tl.load(b_tile), total)
        a_tile += K
        b_tile += K * n
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))


@triton.jit
def returns_early(x, n):
    """Another one, most of whose programs may have nothing to do."""
    if tl.program_id(0) >= n:
        return
    tl.store(x + tl.program_id(0), 1.0)
