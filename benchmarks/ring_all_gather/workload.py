"""Runs the ring all-gather on every rank, and compares every number.

Written from docs/own_kernel.md alone.

    kprof record --nproc 2 -o run.kprof -- python benchmarks/ring_all_gather/workload.py
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import kprof

HERE = Path(__file__).parent
NUM_BLOCKS, NUM_THREADS, PART_SIZE = 4, 64, 16384


def main() -> None:
    """Find the device, build the kernel for it, and run it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=8, help="calls")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="rank 1 is late by this")
    options = parser.parse_args()
    device = options.device
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("gloo")
    run(kprof.TorchGroup(), device, options)
    dist.destroy_process_group()


def run(group: kprof.TorchGroup, device: str, options: argparse.Namespace) -> None:
    """Call the kernel a few times, with recording under `kprof record`."""
    library = kprof.load_library(HERE / "kernel.hip", kprof.BuildOptions.for_device(device))
    rank, world = group.rank, group.world_size
    part = torch.arange(PART_SIZE, dtype=torch.float32, device=device) + rank * PART_SIZE
    gathered = torch.zeros(world * PART_SIZE, device=device)
    heap = kprof.SymmetricHeap(group, 8 * world * (PART_SIZE + NUM_BLOCKS), device)
    recorder = kprof.recorder(HERE / "regions.h", device=device)
    recorder.align(group)
    for epoch in range(1, options.repeats + 1):
        group.barrier()
        time.sleep(options.delay_ms / 1e3 if rank == 1 else 0)
        buffer = recorder.launch(
            "ring_all_gather",
            num_blocks=NUM_BLOCKS,
            threads_per_block=NUM_THREADS,
            tracks_per_block=1,
        )
        stream = None if device == "cpu" else torch.cuda.current_stream().cuda_stream
        tensors = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (part, gathered))
        heaps = (ctypes.c_uint64 * world)(*heap.bases)
        grid = (NUM_BLOCKS, NUM_THREADS)
        numbers = (PART_SIZE, rank, world, epoch)
        error = library.launch(
            buffer.packed(), ctypes.c_void_p(stream), *grid, *tensors, heaps, *numbers
        )
        if error:
            raise RuntimeError(f"the launch failed with error {error}")
    if device != "cpu":
        torch.cuda.synchronize()
    recorder.align(group)
    assert torch.equal(gathered.cpu(), torch.arange(world * PART_SIZE, dtype=torch.float32))
    heap.close()


if __name__ == "__main__":
    main()
