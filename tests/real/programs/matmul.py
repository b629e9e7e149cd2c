"""max-autotune matmul, Triton only: a template that Inductor tunes itself."""

import torch
import torch._inductor.config as config

config.max_autotune_gemm_backends = "TRITON"
torch.manual_seed(1)
a, b = (torch.randn(2048, 2048, device="cuda", dtype=torch.float16) for _ in range(2))
compiled = torch.compile(lambda a, b: torch.relu(a @ b), mode="max-autotune-no-cudagraphs")
for _ in range(6):
    out = compiled(a, b)
expected = torch.relu(a.double() @ b.double())
print("right:", bool((out.double() - expected).abs().max() < 0.3))
