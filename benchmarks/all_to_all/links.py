"""The rate at which every GPU writes to all its peers at once, and the bytes that an all-to-all must move."""

from __future__ import annotations

import ctypes
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from instrumented_kernels.all_to_all import Problem
from instrumented_kernels.all_to_all.routing import Inputs
from instrumented_kernels.kernel_library import build_options
from instrumented_kernels.layouts import MAX_RANKS
from kprof.devices.build import load_library
from kprof.devices.gpu import stream_reader, with_number
from kprof.devices.symmetric import SymmetricHeap

if TYPE_CHECKING:
    from kprof.devices.groups import Group

ROWS_PER_PEER: Final = 4096
HALVES_PER_ROW: Final = 7168
WARPS_PER_BLOCK: Final = 8
NUM_WARMUPS: Final = 3
REPEATS: Final = 10


class _LinkCopy(ctypes.Structure):
    _fields_ = [
        ("source", ctypes.c_void_p),
        ("heaps", ctypes.c_void_p * MAX_RANKS),
        ("rank", ctypes.c_uint32),
        ("world_size", ctypes.c_uint32),
        ("rows_per_peer", ctypes.c_uint32),
        ("halves_per_row", ctypes.c_uint32),
    ]


def measure_bytes_per_second(group: Group, device: str) -> float:
    """What leaves one GPU per second while all write to all others.

    The slowest rank's median over repeats.
    """
    row_bytes = 2 * HALVES_PER_ROW
    library = load_library(Path(__file__).parent / "link.hip", build_options(device))
    library.launch_link_copy.argtypes = [
        ctypes.POINTER(_LinkCopy),
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_void_p,
    ]
    heap = SymmetricHeap(group, group.world_size * ROWS_PER_PEER * row_bytes, device)
    source = torch.zeros(ROWS_PER_PEER * HALVES_PER_ROW, dtype=torch.float16, device=device)
    copy = _LinkCopy(
        source.data_ptr(), (ctypes.c_void_p * MAX_RANKS)(*heap.bases), group.rank, group.world_size,
        ROWS_PER_PEER, HALVES_PER_ROW,
    )  # fmt: skip
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    times_s = []
    current_stream = stream_reader(with_number(device))
    for repeat in range(NUM_WARMUPS + REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        group.barrier()
        begin.record()
        error = library.launch_link_copy(
            ctypes.byref(copy), num_sms, 32 * WARPS_PER_BLOCK, current_stream()
        )
        end.record()
        end.synchronize()
        assert error == 0
        if repeat >= NUM_WARMUPS:
            times_s.append(begin.elapsed_time(end) / 1e3)
    group.barrier()
    heap.close()
    slowest = max(group.all_gather(statistics.median(times_s)))
    return (group.world_size - 1) * ROWS_PER_PEER * row_bytes / slowest


def bytes_between_ranks(group: Group, problem: Problem, inputs: Inputs) -> dict[str, int]:
    """Bytes of rows that the busiest rank sends or receives in one call.

    Dispatch with a row per expert, dispatch with a row per rank, and combine (a row per expert, the
    other way).
    """
    ranks = (inputs.indices // (problem.num_experts // group.world_size)).long()
    per_expert = torch.bincount(ranks.flatten(), minlength=group.world_size)
    once = torch.zeros(len(ranks), group.world_size, dtype=torch.bool).scatter_(1, ranks, True)
    sent = group.all_gather((per_expert.tolist(), once.sum(dim=0).tolist()))
    row_bytes = 2 * problem.hidden

    def busiest(rows: list[list[int]]) -> int:
        out = [sum(row) - row[rank] for rank, row in enumerate(rows)]
        arriving = [
            sum(column) - column[rank] for rank, column in enumerate(zip(*rows, strict=True))
        ]
        return row_bytes * max(out + arriving)

    each, deduplicated = (
        busiest([entry[0] for entry in sent]),
        busiest([entry[1] for entry in sent]),
    )
    return {"dispatch_row_per_expert": each, "dispatch_row_per_rank": deduplicated, "combine": each}
