"""A persistent matmul in Gluon with warp roles (Hopper): one partition loads tiles, the other
multiplies them.

Each program computes every num_programs-th tile of the product. Tiles of A and B pass through a
ring of STAGES slots in shared memory. Every slot has two barriers: `full`, which the loads
complete, and `empty`, at which the multiplying partition arrives when it has read the slot.

    load partition    wait until the place is empty, start the copies into it, next place
    math partition    wait until the place is full, multiply, release the place before; after K,
                      store the tile

Both wait, and which of them does says what bounds the kernel: `load/wait` is long where the tensor
cores are busy, `math/wait` where memory is late.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

import kprof.triton as kp

regions = kp.Regions()
LOAD_WAIT = regions.define("load/wait", category="wait", tile=16, step=16)
LOAD_TILE = regions.define("load/tile", category="recv", tile=16)
MATH_WAIT = regions.define("math/wait", category="wait", tile=16, step=16)
MATH_TILE = regions.define("math/tile", category="compute", tile=16)
MATH_STORE = regions.define("math/store", category="send", tile=16)

# Triton 3.8 calls it async_load.
copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


@gluon.jit
def load(
    a, b, a_ring, b_ring, full, empty, tiles_m, num_tiles, num_steps, prof,
    IN_LOOP: gl.constexpr, STAGES: gl.constexpr, AT_MOST: gl.constexpr,
):  # fmt: skip
    """Fills the ring in the order in which `multiply` empties it."""
    M: gl.constexpr = a.block_type.shape[0]
    K: gl.constexpr = a.block_type.shape[1]
    N: gl.constexpr = b.block_type.shape[1]
    track = kp.open_track(prof, place=1, at_most=AT_MOST)
    turn = 0
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        begin = kp.start(track)
        for step in range(num_steps):
            place = turn % STAGES
            if IN_LOOP:
                waiting = kp.start(track)
            mbarrier.wait(empty.index(place), (turn // STAGES + 1) & 1)
            if IN_LOOP:
                track = kp.stop(track, waiting, LOAD_WAIT, tile, step)
            arrived = full.index(place)
            mbarrier.expect(arrived, a.block_type.nbytes + b.block_type.nbytes)
            copy_in(a, [tile % tiles_m * M, step * K], arrived, a_ring.index(place))
            copy_in(b, [step * K, tile // tiles_m * N], arrived, b_ring.index(place))
            turn += 1
        track = kp.stop(track, begin, LOAD_TILE, tile)


@gluon.jit
def multiply(
    c, a_ring, b_ring, full, empty, n, tiles_m, num_tiles, num_steps, prof,
    IN_LOOP: gl.constexpr, STAGES: gl.constexpr, AT_MOST: gl.constexpr,
):  # fmt: skip
    """Multiplies the tiles in the ring, and stores every finished tile of C."""
    M: gl.constexpr = a_ring.shape[1]
    N: gl.constexpr = b_ring.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, N, 16]
    )
    track = kp.open_track(prof, at_most=AT_MOST)
    turn = 0
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        begin = kp.start(track)
        total = gl.zeros((M, N), gl.float32, layout)
        for step in range(num_steps):
            place = turn % STAGES
            if IN_LOOP:
                waiting = kp.start(track)
            mbarrier.wait(full.index(place), turn // STAGES & 1)
            if IN_LOOP:
                track = kp.stop(track, waiting, MATH_WAIT, tile, step)
            total = warpgroup_mma(a_ring.index(place), b_ring.index(place), total, is_async=True)
            # All products but this one have finished, so the slot before has been read.
            total = warpgroup_mma_wait(1, deps=[total])
            mbarrier.arrive(empty.index((turn + STAGES - 1) % STAGES), count=1, pred=step > 0)
            turn += 1
        total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.arrive(empty.index((turn + STAGES - 1) % STAGES), count=1)
        track, begin = kp.lap(track, begin, MATH_TILE, tile)
        rows = tile % tiles_m * M + gl.arange(0, M, gl.SliceLayout(1, layout))
        columns = tile // tiles_m * N + gl.arange(0, N, gl.SliceLayout(0, layout))
        gl.store(c + rows[:, None] * n + columns[None, :], total.to(gl.float16))
        track = kp.stop(track, begin, MATH_STORE, tile)


@gluon.jit
def persistent_matmul(
    a, b, c, m, n, k, prof,
    IN_LOOP: gl.constexpr, STAGES: gl.constexpr, AT_MOST: gl.constexpr = None,
):  # fmt: skip
    """C = A @ B in fp16.

    A and b are tensor descriptors, whose blocks are the tiles and divide m, n and k. If AT_MOST is
    given, no role records more events than that.
    """
    M: gl.constexpr = a.block_type.shape[0]
    K: gl.constexpr = a.block_type.shape[1]
    N: gl.constexpr = b.block_type.shape[1]
    a_ring = gl.allocate_shared_memory(a.dtype, [STAGES, M, K], a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES, K, N], b.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for place in gl.static_range(STAGES):
        mbarrier.init(full.index(place), count=1)
        mbarrier.init(empty.index(place), count=1)
    # Copies access barriers through another proxy than the threads that initialised them.
    fence_async_shared()
    tiles_m = m // M
    num_tiles = tiles_m * (n // N)
    num_steps = k // K
    gl.warp_specialize(
        [
            (
                multiply,
                (
                    c, a_ring, b_ring, full, empty, n,
                    tiles_m, num_tiles, num_steps, prof, IN_LOOP, STAGES, AT_MOST,
                ),
            ),
            (
                load,
                (
                    a, b, a_ring, b_ring, full, empty,
                    tiles_m, num_tiles, num_steps, prof, IN_LOOP, STAGES, AT_MOST,
                ),
            ),
        ],
        [1],
        [48],
    )  # fmt: skip
