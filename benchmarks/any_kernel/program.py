"""A program with no kprof in it: launches the kernel of one case ten times, and prints how long a launch took.

    python program.py CASE LOCK LIBRARY

It waits for the file LOCK before it touches the GPU, and has it to the end: others then have the GPU to themselves.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from benchmarks.any_kernel.cases import CASES, NUM_LAUNCHES, NUM_SKIPPED, Shape

Launch = Callable[[], object]
SIZE = 1 << 24


@triton.jit  # type: ignore[untyped-decorator]
def planted(  # type: ignore[no-untyped-def]
    data, size, base, late_block, late_sm, factor, slope, body: tl.constexpr, width: tl.constexpr
):
    """The same as in planted.cu."""
    block = tl.program_id(0) + tl.num_programs(0) * tl.program_id(1)
    num_blocks = tl.num_programs(0) * tl.num_programs(1)
    lane = tl.arange(0, width)
    sm = tl.max(
        tl.inline_asm_elementwise(
            "mov.u32 $0, %smid;",
            "=r,r",
            [lane],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        ),
        axis=0,
    )
    is_late = (block == late_block) | (sm == late_sm)
    steps = tl.where(is_late, base * factor, base)
    steps += base * slope * block // tl.maximum(num_blocks - 1, 1)
    value = lane.to(tl.float32)
    place = (block * 977 + lane) % size
    for _ in range(steps):
        if body == 0:
            for _ in tl.static_range(64):
                value = value * 0.9999 + 0.5
        elif body == 1:
            value += tl.load(data + place)
            place = (place + 4099) % size
        else:
            value = value * 0.5 + tl.sum(value, axis=0) * 1e-6
    tl.store(data + place, value, mask=value == -1.0)


def triton_launch(shape: Shape) -> Launch:
    data = torch.zeros(SIZE, device="cuda")
    numbers = (SIZE, shape.base, shape.late_block, shape.late_sm, shape.factor, shape.slope)
    return lambda: planted[shape.grid](
        data, *numbers, body=shape.body, width=32 * shape.warps, num_warps=shape.warps
    )


def cuda_launch(shape: Shape, library: str) -> Launch:
    data = torch.zeros(SIZE, device="cuda")
    start = ctypes.CDLL(library).launch_planted
    numbers = (shape.base, shape.late_block, shape.late_sm, shape.factor, shape.slope)

    def launch() -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        at = ctypes.c_void_p(data.data_ptr())
        sizes = (*shape.grid, 32 * shape.warps, shape.shared)
        code = start(shape.body, *sizes, at, SIZE, *numbers, stream)
        assert code == 0, f"CUDA error {code}"

    return launch


def torch_launch(name: str) -> Launch:
    if name.startswith("torch_embedding_bag"):
        lengths = torch.full((8192,), 64)
        lengths[616] = 64 * 40
        offsets = (lengths.cumsum(0) - lengths).cuda()
        values = torch.randint(0, 1000, (int(lengths.sum()),)).cuda()
        weight = torch.randn(1000, 32).cuda()
        mode = name.rpartition("_")[2]
        return lambda: torch.nn.functional.embedding_bag(values, weight, offsets, mode=mode)
    if name == "torch_ctc_loss":
        log_probs = torch.randn(600, 132, 50).log_softmax(-1).cuda()
        targets = torch.randint(1, 50, (132, 400)).cuda()
        steps = torch.full((132,), 60)
        steps[40] = 600
        numbers = (steps.cuda(), torch.full((132,), 400).cuda())
        return lambda: torch.nn.functional.ctc_loss(
            log_probs, targets, *numbers, reduction="none", zero_infinity=True
        )
    if name == "torch_softmax_tail":
        rows = torch.randn(272, 8192).cuda()
        return lambda: torch.softmax(rows, dim=1)
    left, right = torch.randn(4096, 4096).cuda(), torch.randn(4096, 4096).cuda()
    return lambda: left @ right


def main(name: str, lock: str, library: str) -> None:
    case = CASES[name]
    # Never closed: what run-iket reads back when the program ends is part of it.
    fcntl.flock(os.open(lock, os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)
    begin_s = time.perf_counter()
    if case.source == "torch":
        launch = torch_launch(name)
    else:
        launch = (
            triton_launch(case.shape)
            if case.source == "triton"
            else cuda_launch(case.shape, library)
        )
    times_us = [_timed(launch) for _ in range(NUM_SKIPPED + NUM_LAUNCHES)]
    gpu_us, host_us = (
        statistics.median(each) for each in zip(*times_us[NUM_SKIPPED:], strict=True)
    )
    seconds = time.perf_counter() - begin_s
    print(
        json.dumps({"program": name, "gpu_us": gpu_us, "host_us": host_us, "seconds": seconds}),
        flush=True,
    )


def _timed(launch: Launch) -> tuple[float, float]:
    """GPU and host microseconds of one launch."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    begin_s = time.perf_counter()
    first.record()
    launch()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) * 1e3, (time.perf_counter() - begin_s) * 1e6


if __name__ == "__main__":
    main(*sys.argv[1:])
