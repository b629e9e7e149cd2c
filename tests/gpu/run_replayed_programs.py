"""Compiled functions in CUDA graphs; test_replayed_programs_gpu.py starts it.

usage: run_replayed_programs.py {graph,trees,streams,raw} NUM_REPLAYS
"""

from __future__ import annotations

import sys

import torch

mode, num_replays = sys.argv[1], int(sys.argv[2])
torch.manual_seed(5)
x = torch.randn(64, 5000, device="cuda")


def function(x: torch.Tensor) -> torch.Tensor:
    return (torch.softmax(torch.relu(x) * 3 + x.sin(), 1).cumsum(1) * x.cos()).sum(0)


def captured() -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        return graph, compiled(x)


compiled = torch.compile(function, mode="reduce-overhead" if mode == "trees" else None)
values = []
if mode == "trees":
    for step in range(num_replays):
        torch.compiler.cudagraph_mark_step_begin()
        values.append(compiled(x + step).double().sum())
else:
    for _ in range(3):
        compiled(x)
    torch.cuda.synchronize()
    graphs = [captured() for _ in range(2 if mode == "streams" else 1)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for step in range(num_replays):
        for number, (graph, out) in enumerate(graphs):
            # Both graphs on both streams, in turn.
            stream = streams[(step // 3 + number) % 2] if mode == "streams" else None
            with torch.cuda.stream(stream):
                if mode == "raw" and step % 2:
                    # As C++ does it: nobody in Python hears of it.
                    torch._C._CUDAGraph.replay(graph)
                else:
                    graph.replay()
            if step % 10 == 9 or mode != "streams":
                torch.cuda.synchronize()
                values.append(out.double().sum())
torch.cuda.synchronize()
print("value", [float(value) for value in values])
