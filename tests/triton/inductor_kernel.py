"""A kernel as Inductor writes them, for a GPU that is not here: `doubled` is its CachingAutotuner."""

from __future__ import annotations

import triton
import triton.language as tl
from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties

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


doubled = triton_poi_fused_doubled_0
