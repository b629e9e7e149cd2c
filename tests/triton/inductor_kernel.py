"""Kernels as Inductor writes them, for a GPU that is not here: `doubled`, `normed` and `rotated` are their CachingAutotuners."""

from __future__ import annotations

import triton
import triton.language as tl
from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.runtime.triton_helpers import math as tl_math

_DEVICE = DeviceProperties(
    type="cuda",
    index=0,
    multi_processor_count=132,
    cc=90,
    major=9,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
)


@triton_heuristics.pointwise(
    size_hints={"x": 4096},
    filename=__file__,
    triton_meta={
        "signature": {
            "in_ptr0": "*fp32",
            "out_ptr0": "*fp32",
            "ks0": "i64",
            "scale": "fp64",
            "xnumel": "i32",
            "XBLOCK": "constexpr",
        },
        "device": _DEVICE,
        "constants": {},
        "configs": [{}],
    },
    inductor_meta={
        "grid_type": "Grid1D",
        "kernel_name": "triton_poi_fused_doubled_0",
        "mutated_arg_names": [],
        "autotune_hints": set(),
    },
    min_elem_per_thread=0,
)
@triton.jit
def triton_poi_fused_doubled_0(in_ptr0, out_ptr0, ks0, scale, xnumel, XBLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    tmp0 = tl.load(in_ptr0 + xindex, xmask)
    tl.store(out_ptr0 + xindex + ks0, tmp0 * 2 * scale, xmask)


@triton_heuristics.persistent_reduction(
    size_hints={"x": 2048, "r0_": 1024},
    filename=__file__,
    triton_meta={
        "signature": {
            "in_ptr0": "*bf16",
            "in_ptr1": "*bf16",
            "out_ptr1": "*bf16",
            "xnumel": "i32",
            "r0_numel": "i32",
            "XBLOCK": "constexpr",
        },
        "device": _DEVICE,
        "constants": {},
        "configs": [{}],
    },
    inductor_meta={
        "grid_type": "Grid1D",
        "kernel_name": "triton_per_fused_normed_1",
        "mutated_arg_names": [],
        "autotune_hints": set(),
    },
)
@triton.jit
def triton_per_fused_normed_1(in_ptr0, in_ptr1, out_ptr1, xnumel, r0_numel, XBLOCK: tl.constexpr):
    R0_BLOCK: tl.constexpr = 1024  # noqa: N806
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    tmp0 = tl.load(in_ptr0 + (r0_index + 1024 * xindex), xmask, other=0.0).to(tl.float32)
    tmp1 = tl.load(in_ptr1 + r0_index).to(tl.float32)
    tmp2 = tl.where(xmask, tl.broadcast_to(tmp0 * tmp0, [XBLOCK, R0_BLOCK]), 0)
    tmp3 = tl.rsqrt(tl.sum(tmp2, 1)[:, None] / 1024.0 + 1e-6)
    tl.store(out_ptr1 + (r0_index + 1024 * xindex), tmp0 * tmp3 * tmp1 + tmp0, xmask)


@triton_heuristics.pointwise(
    size_hints={"x": 524288},
    filename=__file__,
    triton_meta={
        "signature": {
            "in_out_ptr0": "*bf16",
            "in_ptr0": "*bf16",
            "in_ptr1": "*bf16",
            "xnumel": "i32",
            "XBLOCK": "constexpr",
        },
        "device": _DEVICE,
        "constants": {},
        "configs": [{(idx,): [["tt.divisibility", 16]] for idx in (0, 2, 3)}],
    },
    inductor_meta={
        "grid_type": "Grid1D",
        "kernel_name": "triton_poi_fused_rotated_2",
        "mutated_arg_names": ["in_out_ptr0"],
        "autotune_hints": set(),
    },
    min_elem_per_thread=0,
)
@triton.jit
def triton_poi_fused_rotated_2(in_out_ptr0, in_ptr0, in_ptr1, xnumel, XBLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tmp0 = tl.load(in_out_ptr0 + xindex, None).to(tl.float32)
    tmp1 = tl.load(in_ptr0 + (xindex % 32), None, eviction_policy="evict_last").to(tl.float32)
    tmp2 = tl.load(in_ptr1 + xindex, None).to(tl.float32)
    tmp3 = ((xindex // 256) % 512).to(tl.float32) * tmp1
    tmp4 = tmp0 * tl_math.cos(tmp3) + tmp2 * tl_math.sin(tmp3)
    tl.store(in_out_ptr0 + xindex, tmp4, None)


doubled, normed = triton_poi_fused_doubled_0, triton_per_fused_normed_1
rotated = triton_poi_fused_rotated_2
