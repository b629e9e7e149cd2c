"""What kprof relies on, tried on one device: `kprof doctor --first-run`, for a GPU that is new.

Every question has an answer in one line, and none keeps the next from being asked. A wait in one of
these kernels ends after LIMIT_S.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

from kprof.clocks.calibration import measure_clock
from kprof.devices import gpu
from kprof.devices.build import BuildOptions, build_library, error_text, load_library
from kprof.devices.groups import Group, SoloGroup
from kprof.devices.memory import RegisteredMemory, allocate
from kprof.devices.symmetric import SymmetricHeap
from kprof.devices.targets import describe_device, target_of_device
from kprof.doctor.checks import Check
from kprof.errors import KprofError
from kprof.recording.rank.probe_cost import measure_probe_cost

LIMIT_S: Final = 5.0
_SOURCE: Final = Path(__file__).parents[1] / "kernels" / "first_run.hip"
_STAMP: Final = np.dtype([("ticks", "<u8"), ("hw_id", "<u4"), ("has_met", "<u4")])
_NUM_ROUNDS: Final = 100
_NUM_REPLAYS: Final = 3
# Between two readings of the clock, for its rate.
_PAUSE_S: Final = 0.5
# A rate that is wrong is so by a factor; the host's clock and launches are good to a percent.
_RATE_TOLERANCE: Final = 0.02
# Blocks that leave one barrier read the clock within this, unless their clocks differ.
_MOST_SPREAD_NS: Final = 20_000.0


class FirstRun:
    """The questions to one device, "cpu" or a torch device.

    Raises KprofError where nothing can be built.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._is_gpu = device != "cpu"
        options = BuildOptions(target_of_device(device))
        _build_all(options)
        self._library = load_library(_SOURCE, options)
        pointer, word, ticks = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
        self._library.first_run_stamp.argtypes = [pointer, pointer, word, ticks, pointer]
        self._library.first_run_answer.argtypes = [pointer, pointer, word, ticks, pointer]
        self._library.first_run_count.argtypes = [pointer, pointer, pointer]
        self._library.first_run_ticks_per_second.restype = ticks
        self._rate = float(self._library.first_run_ticks_per_second())
        self._kept: list[object] = []

    def checks(self) -> Iterator[Check]:
        """The answers, as they come."""
        questions: tuple[tuple[str, Callable[[], tuple[bool, str]]], ...] = (
            ("device", self._describe),
            ("clock", self._ask_clock),
            ("clock rate against the host", self._ask_rate),
            ("processors and their clocks", self._ask_processors),
            ("flags between kernel and host", self._ask_flags),
            ("memory that peers write", self._ask_memory),
            ("replays of a graph", self._ask_graph),
            ("cost of recording", self._ask_cost),
        )
        for name, ask in questions:
            try:
                is_ok, found = ask()
            except (KprofError, RuntimeError, OSError) as error:
                is_ok, found = False, str(error).splitlines()[0]
            yield Check(name, is_ok, found, "")

    def counts_for_peers(self, group: Group) -> bool:
        """Counts in memory of the next rank, a process that has this same device, and looks whether
        the one before has done so here.

        Collective. Raises KprofError where the ranks cannot share memory.
        """
        heap = SymmetricHeap(group, mmap.PAGESIZE, self._device)
        before = allocate(mmap.PAGESIZE, self._device)
        self._count(heap.bases[(group.rank + 1) % group.world_size], before.address)
        gpu.synchronize(self._device)
        group.barrier()
        self._count(heap.bases[group.rank], before.address)
        num_counted = int(before.read(0, 4).view(np.uint32)[0])
        group.barrier()
        heap.close()
        return num_counted == 1

    def _describe(self) -> tuple[bool, str]:
        found = describe_device(self._device)
        width = self._library.first_run_warp_width()
        text = f"{found.name} ({found.arch}), warps of {width}, {platform.platform()}"
        if self._is_gpu:
            import torch

            runtime = (
                f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
            )
            text += f", torch {torch.__version__}, {runtime}"
        return True, text

    def _ask_clock(self) -> tuple[bool, str]:
        clock = measure_clock(self._device)
        self._rate = clock.ticks_per_second
        return (
            clock.step_ns > 0,
            f"{clock.source}, {self._rate / 1e6:.0f} MHz, steps of {clock.step_ns:.0f} ns",
        )

    def _ask_rate(self) -> tuple[bool, str]:
        self._stamp(1)
        begin_s, begin = time.perf_counter(), self._stamp(1)["ticks"][0]
        time.sleep(_PAUSE_S)
        elapsed_s = time.perf_counter() - begin_s
        measured = float(self._stamp(1)["ticks"][0] - begin) / elapsed_s
        is_ok = abs(measured / self._rate - 1) < _RATE_TOLERANCE
        return is_ok, f"{measured / 1e6:.1f} MHz measured, {self._rate / 1e6:.1f} expected"

    def _ask_processors(self) -> tuple[bool, str]:
        num_processors = self._library.first_run_processors()
        stamps = self._stamp(num_processors or 4)
        spread_ns = float(np.ptp(stamps["ticks"])) * 1e9 / self._rate
        num_seen, num_chips = len(np.unique(stamps["hw_id"])), len(np.unique(stamps["hw_id"] >> 16))
        have_met = bool(stamps["has_met"].all())
        met = (
            f"{len(stamps)} blocks {'met' if have_met else 'did NOT meet'} on {num_seen} processors"
        )
        text = (
            f"{met} of {num_processors or 'unknown many'}, {num_chips} chiplets; "
            f"left a barrier within {spread_ns:,.0f} ns"
        )
        return have_met and (not self._is_gpu or spread_ns < _MOST_SPREAD_NS), text

    def _ask_flags(self) -> tuple[bool, str]:
        """Both ways, through memory of the host; and a copy of device memory beside the kernel, as
        draining needs it."""
        pages = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)
        shared = RegisteredMemory.of(pages, self._device) if self._is_gpu else None
        address = shared.address if shared else int(pages.ctypes.data)
        # A kernel that is not answered writes there until its limit.
        self._kept.append((pages, shared))
        words = pages.view(np.uint32)
        mark = allocate(mmap.PAGESIZE, self._device)
        mark.prepare_to_peek()
        kernel = threading.Thread(target=self._answer, args=(address, mark.address), daemon=True)
        kernel.start()
        if not _until(words, 1):
            return False, f"a store at system scope did not reach the host in {LIMIT_S:.0f} s"
        copied: list[int] = []
        copier = threading.Thread(
            target=lambda: copied.append(int(mark.peek(0, 4).view(np.uint32)[0])), daemon=True
        )
        copier.start()
        copier.join(LIMIT_S / 2)
        has_copied = copied == [_NUM_ROUNDS]
        begin_s = time.perf_counter()
        for number in range(1, _NUM_ROUNDS + 1):
            if not _until(words, number):
                return False, f"the kernel did not see flag {number} of the host"
            words[16] = number
        has_ended = _until(words, _NUM_ROUNDS + 1)
        round_us = (time.perf_counter() - begin_s) * 1e6 / _NUM_ROUNDS
        kernel.join(LIMIT_S)
        gpu.synchronize(self._device)
        beside = "saw its store" if has_copied else "did NOT end while the kernel ran, or was stale"
        return (
            has_ended and has_copied,
            f"{_NUM_ROUNDS} rounds of {round_us:.1f} us; a copy beside the kernel {beside}",
        )

    def _ask_memory(self) -> tuple[bool, str]:
        heap = SymmetricHeap(SoloGroup(), 1 << 20, self._device)
        heap.close()
        return (
            True,
            f"{heap.memory_kind}, and exported to other processes"
            if self._is_gpu
            else heap.memory_kind,
        )

    def _ask_graph(self) -> tuple[bool, str]:
        if not self._is_gpu:
            return True, "none on the CPU"
        import torch

        word = allocate(mmap.PAGESIZE, self._device)
        # Loads the kernel: not while a graph is captured.
        self._count(word.address, word.address + 4)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._count(word.address, word.address + 4)
        for _ in range(_NUM_REPLAYS):
            graph.replay()
        num_runs = int(word.read(0, 4).view(np.uint32)[0]) - 1
        return num_runs == _NUM_REPLAYS, f"{_NUM_REPLAYS} replays ran the kernel {num_runs} times"

    def _ask_cost(self) -> tuple[bool, str]:
        cost = measure_probe_cost(self._device, measure_clock(self._device))
        cycles = f"cycles at {(cost.cycles_per_second or 0) / 1e6:.0f} MHz"
        text = f"{cost.pair_ns:.0f} ns for a start and a stop, {cycles}"
        return cost.pair_ns > 0, text

    def _stamp(self, num_blocks: int) -> np.ndarray:
        """The clock in as many blocks, which have waited for each other."""
        memory = allocate(mmap.PAGESIZE + num_blocks * _STAMP.itemsize, self._device)
        limit = int(LIMIT_S * self._rate)
        stamps = memory.address + mmap.PAGESIZE
        self._check(
            self._library.first_run_stamp(stamps, memory.address, num_blocks, limit, self._stream())
        )
        return memory.read(mmap.PAGESIZE, memory.size_bytes).view(_STAMP)

    def _answer(self, words: int, mark: int) -> None:
        with gpu.made_current(self._device):
            limit = int(LIMIT_S * self._rate)
            self._library.first_run_answer(words, mark, _NUM_ROUNDS, limit, self._stream())

    def _count(self, word: int, before: int) -> None:
        self._check(self._library.first_run_count(word, before, self._stream()))

    def _stream(self) -> int | None:
        return gpu.stream_reader(self._device)()

    def _check(self, error: int) -> None:
        if error:
            raise RuntimeError(f"the launch failed: {error_text(self._library, error)}")


def _build_all(options: BuildOptions) -> None:
    """At the same time what the questions would build one after the other. They say what failed."""
    with ThreadPoolExecutor() as pool:
        for source in _SOURCE.parent.glob("*.hip"):
            pool.submit(build_library, source, options)


def _until(words: np.ndarray, value: int) -> bool:
    """Whether the first word reaches a value before the limit."""
    end_s = time.monotonic() + LIMIT_S
    while words[0] < value:
        if time.monotonic() > end_s:
            return False
    return True
