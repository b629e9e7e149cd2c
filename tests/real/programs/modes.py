"""Compiled functions and a kernel of one's own where torch is not as usual: modes.py MODE."""

import sys
from contextlib import nullcontext

import torch
import triton
import triton.language as tl

import kprof.triton as kp


@triton.jit
def doubled(out, x, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, 2 * tl.load(x + place, place < n), place < n)


kernel = kp.instrument(doubled, at={"all": ..., "load": "tl.load"})


def twice(x):
    out = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 256),)](out, x, x.numel(), BLOCK=256)
    return out


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return twice(gradient)


mode = sys.argv[1]
torch.manual_seed(3)
x = torch.randn(5000, device="cuda")
compiled = torch.compile(lambda x: torch.softmax(torch.relu(x) * 3 + x.sin(), 0))
if mode == "backward":
    y = x.clone().requires_grad_()
    (Twice.apply(y) * compiled(y)).sum().backward()
    print("value", float(y.grad.double().sum()))
elif mode == "graph":
    graph = torch.cuda.CUDAGraph()
    compiled(x)
    with torch.cuda.graph(graph):
        out = twice(x) + compiled(x)
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    print("value", float(out.double().sum()))
elif mode == "graph, warm":
    twice(x)
    for _ in range(3):
        compiled(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = twice(x) + compiled(x)
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    print("value", float(out.double().sum()))
else:
    if mode == "default device":
        torch.set_default_device("cuda")
    if mode == "deterministic":
        torch.use_deterministic_algorithms(mode=True)
    if mode == "fake first":
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            torch.empty(3, device="cuda") * 2
    inference = torch.inference_mode() if mode == "inference" else nullcontext()
    profiler = torch.profiler.profile() if mode == "profiler" else nullcontext()
    with inference, profiler:
        for _ in range(4):
            out = twice(x) + compiled(x)
    torch.cuda.synchronize()
    print("value", float(out.double().sum()))
