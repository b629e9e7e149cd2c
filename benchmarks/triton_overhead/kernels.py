"""A copy of rows and a matmul, each in one source for all profilers: what is not asked for compiles
to nothing.

The tests compile and run them, too (tests/triton/sample_kernels.py). `AT_MOST` is the most events of
a program, for kprof.

Triton-distributed's scheme is written from its description: two 8-byte records per event (when it
began and when it ended), a cursor that is a value of the kernel's, a fence.sc on each side of every
reading, and the low 32 bits of the clock, which wrap every 4.3 s. Nothing is checked: the host
makes the slots large enough.
"""

from __future__ import annotations

import triton
import triton.language as tl
import triton.profiler.language as pl

import kprof.triton as kp

PLAIN, KPROF, PROTON, DISTRIBUTED = 0, 1, 2, 3
IS_KPROF = tl.constexpr(KPROF)
IS_PROTON = tl.constexpr(PROTON)
IS_DISTRIBUTED = tl.constexpr(DISTRIBUTED)
TAG_END = tl.constexpr(1)

regions = kp.Regions()
ROW_COPIED = regions.define("row", category="compute", row=24)
TILE = regions.define("tile", category="compute", m=16, n=16)
STORED = regions.define("stored", category="send", m=16, n=16)
STEP = regions.define("step", category="compute", k=16)


@triton.jit
def distributed_record(cursor, tag):
    """Stores one 8-byte record and returns the next cursor."""
    return tl.inline_asm_elementwise(
        """{
          .reg .pred first;
          .reg .b32 thread, ticks;
          mov.u32 thread, %tid.x;
          setp.eq.u32 first, thread, 0;
          fence.sc.cta;
          mov.u32 ticks, %globaltimer_lo;
          fence.sc.cta;
          @first st.global.v2.b32 [$1], {$2, ticks};
          add.u64 $0, $1, 8;
        }""",
        "=l,l,r,~{memory}",
        [cursor, tag],
        dtype=tl.int64,
        is_pure=False,
        pack=1,
    )


@triton.jit
def distributed_open(slots, slots_per_program):
    """This program's slots."""
    program = tl.program_id(0) + tl.num_programs(0) * tl.program_id(1)
    return (slots + program.to(tl.int64) * slots_per_program).to(tl.int64)


@triton.jit
def copy(
    target, source, num_rows, words, prof, slots, slots_per_program, SCHEME: tl.constexpr, BLOCK: tl.constexpr,
    AT_MOST: tl.constexpr = None,
):  # fmt: skip
    track = kp.open_track(prof, SCHEME == IS_KPROF, at_most=AT_MOST)
    if SCHEME == IS_DISTRIBUTED:
        cursor = distributed_open(slots, slots_per_program)
    columns = tl.arange(0, BLOCK)
    mask = columns < words
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        if SCHEME == IS_PROTON:
            pl.enter_scope("row")
        if SCHEME == IS_DISTRIBUTED:
            cursor = distributed_record(cursor, row * 2)
        begin = kp.start(track)
        first = tl.cast(row, tl.int64) * words
        tl.store(target + first + columns, tl.load(source + first + columns, mask=mask), mask=mask)
        track = kp.stop(track, begin, ROW_COPIED, row)
        if SCHEME == IS_DISTRIBUTED:
            cursor = distributed_record(cursor, row * 2 + TAG_END)
        if SCHEME == IS_PROTON:
            pl.exit_scope("row")


@triton.jit
def matmul(
    a, b, c, n, k, prof, slots, slots_per_program, SCHEME: tl.constexpr, IN_LOOP: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, AT_MOST: tl.constexpr = None,
):  # fmt: skip
    track = kp.open_track(prof, SCHEME == IS_KPROF, at_most=AT_MOST)
    tile_m, tile_n = tl.program_id(0), tl.program_id(1)
    rows, columns, depth = (
        tile_m * M + tl.arange(0, M),
        tile_n * N + tl.arange(0, N),
        tl.arange(0, K),
    )
    a_tile = a + rows[:, None] * k + depth[None, :]
    b_tile = b + depth[:, None] * n + columns[None, :]
    if SCHEME == IS_PROTON:
        pl.enter_scope("tile")
    if SCHEME == IS_DISTRIBUTED:
        cursor = distributed_record(distributed_open(slots, slots_per_program), 0)
    begin = kp.start(track)
    total = tl.zeros((M, N), dtype=tl.float32)
    for step in range(0, k, K):
        if IN_LOOP:
            inner = kp.start(track)
        total = tl.dot(tl.load(a_tile), tl.load(b_tile), total)
        a_tile += K
        b_tile += K * n
        if IN_LOOP:
            track = kp.stop(track, inner, STEP, step // K)
    track, begin = kp.lap(track, begin, TILE, tile_m, tile_n)
    if SCHEME == IS_DISTRIBUTED:
        cursor = distributed_record(cursor, 1)
        cursor = distributed_record(cursor, 2)
    if SCHEME == IS_PROTON:
        pl.exit_scope("tile")
        pl.enter_scope("stored")
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))
    track = kp.stop(track, begin, STORED, tile_m, tile_n)
    if SCHEME == IS_DISTRIBUTED:
        cursor = distributed_record(cursor, 3)
    if SCHEME == IS_PROTON:
        pl.exit_scope("stored")
