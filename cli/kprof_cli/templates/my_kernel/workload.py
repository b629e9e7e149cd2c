"""Runs my_kernel on every rank. Rank 0 has rows four times as long as those of the others."""

import argparse
import ctypes
import os
from pathlib import Path

import torch
import torch.distributed as dist

import kprof

HERE = Path(__file__).parent
NUM_ROWS, NUM_THREADS, NUM_CALLS = 16, 64, 8


def main() -> None:
    """Find the device, build the kernel for it, and run it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--library", help="a built kernel; without it, kprof builds kernel.hip")
    options = parser.parse_args()
    device = options.device
    if device == "cuda":  # ROCm's torch says cuda, too
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("gloo")
    group = kprof.TorchGroup()
    run(group, device, load(device, options.library))
    dist.destroy_process_group()


def load(device: str, built: str | None) -> ctypes.CDLL:
    """The kernel's library, compiled for the device unless somebody has done that already."""
    if built:
        return ctypes.CDLL(str(Path(built).resolve()))
    return kprof.load_library(HERE / "kernel.hip", kprof.BuildOptions.for_device(device))


def run(group: kprof.TorchGroup, device: str, library: ctypes.CDLL) -> None:
    """Call the kernel a few times, with recording under `kprof record`."""
    x, offsets = make_rows(group.rank, device)
    sums = torch.zeros(group.world_size, NUM_ROWS, device=device)
    heap = kprof.SymmetricHeap(group, 2 * group.world_size * NUM_ROWS * 8, device)
    recorder = kprof.recorder(HERE / "regions.h", device=device)
    recorder.align(group)
    for epoch in range(1, NUM_CALLS + 1):
        buffer = recorder.launch(
            "my_kernel", num_blocks=NUM_ROWS, threads_per_block=NUM_THREADS, tracks_per_block=1
        )
        error = library.launch(
            buffer.packed(),
            ctypes.c_void_p(None if device == "cpu" else torch.cuda.current_stream().cuda_stream),
            NUM_ROWS,
            NUM_THREADS,
            ctypes.c_void_p(x.data_ptr()),
            ctypes.c_void_p(offsets.data_ptr()),
            ctypes.c_void_p(sums.data_ptr()),
            (ctypes.c_uint64 * group.world_size)(*heap.bases),
            group.rank,
            group.world_size,
            epoch,
        )
        if error:
            raise RuntimeError(f"my_kernel could not be launched: error {error}")
    if device != "cpu":
        torch.cuda.synchronize()
    recorder.align(group)
    check(group, sums)
    heap.close()


def lengths(rank: int) -> torch.Tensor:
    """How many numbers each row of a rank has."""
    return torch.full((NUM_ROWS,), 65536 if rank == 0 else 16384)


def make_rows(rank: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of a rank, one behind the other, and where each begins."""
    offsets = torch.nn.functional.pad(lengths(rank).cumsum(0), (1, 0)).to(torch.int32)
    return torch.full((int(offsets[-1]),), rank + 1.0, device=device), offsets.to(device)


def check(group: kprof.TorchGroup, sums: torch.Tensor) -> None:
    """Every rank has the sums of all."""
    expected = torch.stack([(rank + 1.0) * lengths(rank) for rank in range(group.world_size)])
    assert torch.equal(sums.cpu(), expected), sums
    if group.rank == 0:
        print(f"the sums of {group.world_size} ranks are right")


main()
