"""A Triton kernel of the user's, through triton_op, within a compiled graph; and torch.cond."""

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton


@triton.jit
def scaled_add(out, x, y, n, scale, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + place, place < n) + scale * tl.load(y + place, place < n)
    tl.store(out + place, total, place < n)


@triton_op("real_programs::scaled_add", mutates_args={})
def add(x: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor:
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 128),)
    wrap_triton(scaled_add)[grid](out, x, y, x.numel(), scale, BLOCK=128)
    return out


def step(x, y):
    z = add(torch.sin(x), y, 2.5)
    return torch.cond(x.sum() > 0, lambda z: z.cos() + 1, lambda z: z.exp() - 1, (z,))


torch.manual_seed(4)
x, y = torch.randn(3000, device="cuda"), torch.randn(3000, device="cuda")
compiled = torch.compile(step)
for _ in range(3):
    out = compiled(x, y)
print("value", float(out.double().sum()))
