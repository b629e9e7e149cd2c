"""flash-linear-attention's chunked gated linear attention."""

import torch
from fla.ops.gla import chunk_gla

torch.manual_seed(6)
q, k, v = (torch.randn(1, 256, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
gate = torch.nn.functional.logsigmoid(torch.randn(1, 256, 4, 64, device="cuda"))
for _ in range(3):
    out, _ = chunk_gla(q, k, v, gate)
print("value", float(out.double().sum()))
