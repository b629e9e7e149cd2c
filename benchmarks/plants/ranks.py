"""One rank of the recording of all plants.

Started twice by `python -m benchmarks.plants`.
"""

from __future__ import annotations

import argparse
import ctypes
from pathlib import Path

import numpy as np
import torch

import kprof
from benchmarks.plants.schedule import (
    CALLS,
    MAX_ITEMS,
    NUM_BLOCKS,
    WARM_UP_CALLS,
    CallPlan,
    plan_of,
    sections,
)
from instrumented_kernels.workload import choose_device, joined_group
from kprof.devices import gpu
from kprof.devices.build import BuildOptions, load_library
from kprof.devices.groups import Group
from kprof.devices.symmetric import SymmetricHeap
from kprof.recording.rank.recorder import Recorder

FOLDER = Path(__file__).parent
ROW_BYTES = 2048
FLUSH_EVERY = 4


class Call(ctypes.Structure):
    """`Call` of kernel.hip."""

    _fields_ = [
        ("mine", ctypes.c_void_p),
        ("theirs", ctypes.c_void_p),
        ("rounds", ctypes.c_void_p),
        ("items", ctypes.c_void_p),
        ("items_theirs", ctypes.c_void_p),
        ("sink", ctypes.c_void_p),
        ("late_ns", ctypes.c_uint64),
        ("rank", ctypes.c_uint32),
        ("epoch", ctypes.c_uint32),
        ("max_items", ctypes.c_uint32),
    ]


class Exchange:
    """The kernel, and the memory that it needs."""

    def __init__(self, group: Group, device: str, rounds: int, threads: int) -> None:
        self.group, self.device, self.rounds, self.threads = group, device, rounds, threads
        slots = NUM_BLOCKS * MAX_ITEMS
        size = 4 * (NUM_BLOCKS + slots) + ROW_BYTES * slots
        self.heap = SymmetricHeap(group, size, device)
        self.sink = torch.zeros(NUM_BLOCKS, dtype=torch.int32, device=device)
        self.library = load_library(FOLDER / "kernel.hip", BuildOptions.for_device(device))
        self.epoch = 0

    def run(self, plan: CallPlan, recorder: Recorder) -> None:
        """One call; the tensors of a call live until it is over."""
        self.epoch += 1
        rank = self.group.rank
        tensors = [
            torch.from_numpy(np.ascontiguousarray(column, dtype=np.int32)).to(self.device)
            for column in (plan.rounds[rank] * self.rounds, plan.items[rank], plan.items[1 - rank])
        ]
        call = Call(
            self.heap.bases[rank],
            self.heap.bases[1 - rank],
            *(tensor.data_ptr() for tensor in tensors),
            self.sink.data_ptr(),
            plan.late_ns[rank],
            rank,
            self.epoch,
            MAX_ITEMS,
        )
        self._synchronize()
        self.group.barrier()
        buffer = recorder.launch(
            "exchange", num_blocks=NUM_BLOCKS, threads_per_block=self.threads, tracks_per_block=1
        )
        stream = None if self.device == "cpu" else torch.cuda.current_stream().cuda_stream
        error = self.library.plants_exchange(
            ctypes.byref(call), NUM_BLOCKS, self.threads, ctypes.c_void_p(stream), buffer.packed()
        )
        if error:
            raise RuntimeError(f"the launch failed with error {error}")
        self._synchronize()

    def _synchronize(self) -> None:
        gpu.synchronize(self.device)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="auto")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    device = choose_device(arguments.target)
    with joined_group() as group:
        exchange = Exchange(group, device, arguments.rounds, arguments.threads)
        recorder = kprof.recorder(FOLDER / "regions.h", device=device)
        assert isinstance(recorder, Recorder), "run this under kprof record"
        recorder.align(group)
        for _ in range(WARM_UP_CALLS):
            exchange.run(CallPlan(), recorder)
        for number, section in enumerate(sections()):
            for call in range(CALLS):
                exchange.run(plan_of(section, call), recorder)
            if number % FLUSH_EVERY == 0:
                recorder.flush()
        recorder.align(group)
        group.barrier()
        exchange.heap.close()


if __name__ == "__main__":
    main()
