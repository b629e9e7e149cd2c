"""flash-linear-attention's chunked gated linear attention: linear_attention.py [spans].

With `spans`, the kernel of the output has spans of kprof's in it: heuristics around a tuner around a kernel.
"""

import sys

import fla.ops.common.chunk_h as chunk_h
import fla.ops.gla.chunk as chunk
import fla.ops.utils.cumsum as cumsum
import torch

import kprof.triton as kp

# To try all configurations takes minutes.
for module in (chunk, chunk_h, cumsum):
    for kernel in vars(module).values():
        while kernel is not None and not isinstance(kernel, type):
            if isinstance(getattr(kernel, "configs", None), list):
                del kernel.configs[1:]
            kernel = getattr(kernel, "fn", None)

if "spans" in sys.argv:
    places = {"all": ..., "dot": "tl.dot"}
    chunk.chunk_gla_fwd_kernel_o = kp.instrument(chunk.chunk_gla_fwd_kernel_o, at=places)

torch.manual_seed(6)
q, k, v = (torch.randn(1, 256, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
gate = torch.nn.functional.logsigmoid(torch.randn(1, 256, 4, 64, device="cuda"))
for _ in range(3):
    out, _ = chunk.chunk_gla(q, k, v, gate)
# What the tuner measures decides how it adds.
print("value", f"{float(out.double().abs().sum()):.3g}")
