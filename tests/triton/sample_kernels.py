"""The kernels that the tests record: a copy by rows and a matmul."""

from __future__ import annotations

import triton
import triton.language as tl

import kprof.triton as kp

regions = kp.Regions()
COPY = regions.define("copy", category="compute", row=24)
STEP = regions.define("step", category="compute", k=16)
TILE = regions.define("tile", category="compute", m=16, n=16)
LEFT = regions.define("left", kind="value")
DONE = regions.define("done", kind="mark", rows=16)


@triton.jit
def copy(x, y, num_rows, prof, ROW: tl.constexpr, RECORD: tl.constexpr):
    track = kp.open_track(prof, RECORD)
    columns = tl.arange(0, ROW)
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        begin = kp.start(track)
        tl.store(y + row * ROW + columns, tl.load(x + row * ROW + columns))
        track = kp.stop(track, begin, COPY, row=row)


@triton.jit
def marks(prof, n):
    track = kp.open_track(prof)
    for i in range(n):
        track = kp.mark(track, DONE, i)
        if i % 2 == 0:
            track = kp.value(track, LEFT, i)


@triton.jit
def plain_copy(x, y, num_rows, prof, ROW: tl.constexpr, RECORD: tl.constexpr):
    columns = tl.arange(0, ROW)
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        tl.store(y + row * ROW + columns, tl.load(x + row * ROW + columns))


@triton.jit
def matmul(
    a, b, c, m, n, k, prof, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, IN_LOOP: tl.constexpr
):
    track = kp.open_track(prof)
    begin = kp.start(track)
    tile_m, tile_n = tl.program_id(0), tl.program_id(1)
    rows, columns, depth = (
        tile_m * M + tl.arange(0, M),
        tile_n * N + tl.arange(0, N),
        tl.arange(0, K),
    )
    a_tile = a + rows[:, None] * k + depth[None, :]
    b_tile = b + depth[:, None] * n + columns[None, :]
    total = tl.zeros((M, N), dtype=tl.float32)
    for step in range(0, k, K):
        if IN_LOOP:
            inner = kp.start(track)
        total = tl.dot(tl.load(a_tile), tl.load(b_tile), total)
        a_tile += K
        b_tile += K * n
        if IN_LOOP:
            track = kp.stop(track, inner, STEP, step // K)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))
    track = kp.stop(track, begin, TILE, tile_m, tile_n)


@triton.jit
def plain_matmul(
    a, b, c, m, n, k, prof, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, IN_LOOP: tl.constexpr
):
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
