"""Kernels like those of Triton's tutorials, instrumented: a fused softmax, and an autotuned matmul."""

import torch
import triton
import triton.language as tl

import kprof.triton as kp


@triton.jit
def softmax(out, x, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + place, place < columns, other=-float("inf"))
    exponents = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + place, exponents / tl.sum(exponents, 0), place < columns)


@triton.autotune(
    configs=[
        triton.Config({"M": m, "N": 64, "K": 32}, num_warps=4, num_stages=3) for m in (32, 64)
    ],
    key=["n"],
)
@triton.jit
def matmul(c, a, b, n, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    depth = tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for first in range(0, n, K):
        left = tl.load(a + rows[:, None] * n + (first + depth)[None, :])
        right = tl.load(b + (first + depth)[:, None] * n + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))


torch.manual_seed(9)
x = torch.randn(300, 700, device="cuda")
out = torch.empty_like(x)
a, b = (torch.randn(512, 512, device="cuda", dtype=torch.float16) for _ in range(2))
c = torch.empty_like(a)
softmax_spans = kp.instrument(softmax, at={"all": ..., "load": "tl.load"})
matmul_spans = kp.instrument(matmul, at={"all": ..., "dot": "tl.dot"})
for _ in range(4):
    softmax_spans[(300,)](out, x, 700, BLOCK=1024)
    matmul_spans[lambda meta: (512 // meta["M"], 512 // meta["N"])](c, a, b, 512)
print("value", float(out.double().sum()), float(c.double().sum()))
