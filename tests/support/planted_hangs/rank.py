"""A rank of the exchange in a process of its own, on the CPU target or on a GPU.

    RANK=1 EXCHANGE_FLAGS=/dev/shm/x python -m planted_hangs.rank NAME DEVICE

The file EXCHANGE_FLAGS holds the flags of all ranks, where all of them and their GPUs can write. Its
first word lets kernels go that hang. NAME is a mistake of kernel.hip, or an ending.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import time
from enum import Enum
from pathlib import Path
from typing import Final

import numpy as np

import kprof
from kprof.devices import gpu
from kprof.devices.build import BuildOptions, load_library
from kprof.devices.memory import allocate
from kprof.devices.targets import target_of_device
from planted_hangs.world import FOLDER, REGIONS, Addresses, Case, Fault, arguments_of

SIZE_BYTES = mmap.PAGESIZE
_FLAGS_OFFSET = 64
_NUM_COUNTER_BYTES = 256


class Ending(Enum):
    """What becomes of the culprit's process."""

    KILLED = "killed"
    STOPPED = "stopped"
    HOLDS_LOCK = "holds_lock"


# Of all endings but this one no kernel is to blame.
_FAULT_OF: Final = {Ending.HOLDS_LOCK: Fault.CYCLE}


def case_of(fault: Fault) -> Case:
    """Two ranks and four blocks: the second of three calls of rank 1 has the mistake."""
    return Case(fault, 1, 2, 4, 3, 1, culprit=1, victim=0, slot=1)


class Rank:
    """The process of one rank."""

    def __init__(self, fault: Fault, ending: Ending | None, device: str) -> None:
        self._rank, self._ending, self._device = int(os.environ["RANK"]), ending, device
        self._case = case_of(fault)
        if device != "cpu":
            gpu.make_current(device)
        target = target_of_device(device)
        self._library = load_library(FOLDER / "kernel.hip", BuildOptions(target))
        self._recorder = kprof.recorder(
            regions=REGIONS, rank=self._rank, world_size=2, device=device
        )
        with Path(os.environ["EXCHANGE_FLAGS"]).open("r+b") as file:
            self._mapping = mmap.mmap(file.fileno(), SIZE_BYTES)
        self._words = np.frombuffer(self._mapping, np.uint32)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        if device != "cpu":
            begin = gpu.register_host_memory(begin, SIZE_BYTES, device)
        self._begin = begin
        self._counters = [allocate(_NUM_COUNTER_BYTES, device) for _ in range(self._case.num_calls)]

    def run(self) -> None:
        """All calls, then a wait for the device, as a training step would do."""
        for call in range(self._case.num_calls):
            if self._is_culprits(call):
                self._end_or_wait()
            self._launch(call)
        if isinstance(self._library, ctypes.PyDLL) and self._ending is Ending.HOLDS_LOCK:
            self._library.wait_for_device()
        gpu.synchronize(self._device)

    def _is_culprits(self, call: int) -> bool:
        return self._rank == self._case.culprit and call == self._case.faulty_call

    def _end_or_wait(self) -> None:
        if self._case.fault is Fault.DIES or self._ending is Ending.KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._ending is Ending.STOPPED:
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._case.fault is Fault.NEVER_LAUNCHES:
            self.load_data()
        if self._ending is Ending.HOLDS_LOCK:
            # The same functions, called without letting go of the interpreter lock.
            self._library = ctypes.PyDLL(self._library._name)

    def load_data(self) -> None:
        """Stands in for a host that waits for something."""
        while not self._words[0]:
            time.sleep(0.01)

    def _launch(self, call: int) -> None:
        case = self._case
        buffer = self._recorder.launch(
            "exchange", num_blocks=case.num_slots, threads_per_block=1, tracks_per_block=1
        )
        addresses = Addresses(
            self._begin + _FLAGS_OFFSET, self._begin, self._counters[call].address
        )
        arguments = arguments_of(case, self._rank, call, addresses)
        error = self._library.run_exchange(
            ctypes.byref(arguments), case.num_slots, buffer.packed(), ctypes.c_uint64(1)
        )
        assert error == 0


def main() -> None:
    name, device = sys.argv[1:]
    ending = Ending(name) if name in {each.value for each in Ending} else None
    fault = Fault[name.upper()] if ending is None else _FAULT_OF.get(ending, Fault.NONE)
    Rank(fault, ending, device).run()


if __name__ == "__main__":
    main()
