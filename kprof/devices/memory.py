"""Memory that kernels can write and the host can read, on any target.

    read, write, clear      copy bytes out or in, or zero them, after all kernels have finished
    peek, poke, wipe        the same while kernels run that leave these bytes alone; call
                            prepare_to_peek once before, and before part
    store_u32               a number for the next launch, without waiting for running kernels
    word                    two functions that do the same with 64 bits: one that is fast, and one
                            that a graph may capture; None where there is no such thing

`address` is a multiple of CHUNK_BYTES. Bytes are [begin, end) from there.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable

import numpy as np

from kprof import abi
from kprof.devices import gpu
from kprof.devices.on_use import torch
from kprof.errors import NoRoomError

Store = Callable[[int], object]


class HostMemory:
    """Memory of this process, for the CPU target."""

    def __init__(self, content: np.ndarray) -> None:
        self._bytes = content
        self.address = int(content.ctypes.data)
        self.size_bytes = len(content)

    @staticmethod
    def of_size(size_bytes: int) -> HostMemory:
        """Fresh memory, zeroed."""
        # np.zeros maps fresh pages: nothing is touched until a kernel writes there.
        whole = np.zeros(size_bytes + abi.CHUNK_BYTES, dtype=np.uint8)
        skip = -whole.ctypes.data % abi.CHUNK_BYTES
        return HostMemory(whole[skip : skip + size_bytes])

    def wait(self) -> None:
        """Nothing to wait for: launches on the CPU target return when they have finished."""

    def read(self, begin: int, end: int) -> np.ndarray:
        """A view of the bytes, after all kernels have finished."""
        self.wait()
        return self._bytes[begin:end]

    def prepare_to_peek(self) -> None:
        """Nothing to allocate."""

    def peek(self, begin: int, end: int) -> np.ndarray:
        """A copy of the bytes."""
        return self._bytes[begin:end].copy()

    def poke(self, begin: int, data: np.ndarray) -> None:
        """Copy bytes in."""
        self._bytes[begin : begin + len(data)] = data

    def wipe(self, begin: int, end: int) -> None:
        """Zero bytes."""
        self._bytes[begin:end] = 0

    def part(self, begin: int, end: int) -> HostMemory:
        """Some of the bytes."""
        return HostMemory(self._bytes[begin:end])

    def write(self, begin: int, data: np.ndarray) -> None:
        """Copy bytes in, for kernels that are launched later."""
        self.wait()
        self.poke(begin, data)

    def clear(self, begin: int, end: int) -> None:
        """Zero bytes, for kernels that are launched later."""
        self.wait()
        self.wipe(begin, end)

    def store_u32(self, begin: int, value: int) -> None:
        """Store a number: one aligned store, which running kernels see whole."""
        self._bytes[begin : begin + 4].view("<u4")[0] = value

    def word(self, begin: int) -> tuple[Store, Store] | None:
        """Both store at once."""
        store = self._bytes[begin : begin + 8].view("<u8").fill
        return store, store


class RegisteredMemory(HostMemory):
    """Memory of this process that a GPU writes to, too."""

    def __init__(self, content: np.ndarray, address: int, device: str) -> None:
        super().__init__(content)
        self.address = address
        self._device = device
        self._whole: RegisteredMemory | None = None

    @staticmethod
    def of(content: np.ndarray, device: str) -> RegisteredMemory:
        """Let the GPU write to `content`, whole pages that stay mapped as long as the memory is
        used.

        Raises RuntimeError where the runtime refuses.
        """
        begin = int(content.ctypes.data)
        num_bytes = -(-len(content) // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = RegisteredMemory(
            content, gpu.register_host_memory(begin, num_bytes, device), device
        )
        # The pages must not go before the runtime has let go of them.
        weakref.finalize(memory, gpu.unregister_host_memory, content, device).atexit = False
        return memory

    def wait(self) -> None:
        """Return when everything on the device has finished."""
        gpu.synchronize(self._device)

    def part(self, begin: int, end: int) -> RegisteredMemory:
        """Some of the bytes."""
        part = RegisteredMemory(self._bytes[begin:end], self.address + begin, self._device)
        part._whole = self
        return part

    def store_u32(self, begin: int, value: int) -> None:
        """Store a number by a copy on the current stream."""
        word = torch.full((1,), value, dtype=torch.int32, device=self._device)
        target = torch.from_numpy(self._bytes[begin : begin + 4].view(np.int32))
        target.copy_(word, non_blocking=True)

    def word(self, begin: int) -> None:
        """Stores here allocate memory."""


class TorchMemory:
    """Memory of a GPU (CUDA or ROCm), through torch's allocator."""

    def __init__(self, content: torch.Tensor, side: gpu.SideCopy | None = None) -> None:
        self._bytes = content
        self._side = side
        self.address = int(content.data_ptr())
        self.size_bytes = len(content)

    @staticmethod
    def of_size(size_bytes: int, device: str) -> TorchMemory:
        """Fresh memory, zeroed."""
        whole = torch.zeros(size_bytes + abi.CHUNK_BYTES, dtype=torch.uint8, device=device)
        skip = -whole.data_ptr() % abi.CHUNK_BYTES
        return TorchMemory(whole[skip : skip + size_bytes])

    def wait(self) -> None:
        """Return when everything on the device has finished."""
        gpu.synchronize(self._bytes.device)

    def read(self, begin: int, end: int) -> np.ndarray:
        """A copy on the host, after everything on the device has finished."""
        gpu.synchronize(self._bytes.device)
        return self._bytes[begin:end].cpu().numpy()

    def prepare_to_peek(self) -> None:
        """Allocate pinned memory and a stream: impossible while a kernel hangs."""
        self._side = gpu.SideCopy(self._bytes.device)

    def peek(self, begin: int, end: int) -> np.ndarray:
        """A copy on the host, on a stream of its own: it waits for no kernel."""
        assert self._side is not None
        return self._side.copy(self._bytes[begin:end])

    def poke(self, begin: int, data: np.ndarray) -> None:
        """Copy bytes to the device, on a stream of its own."""
        assert self._side is not None
        self._side.write(self._bytes[begin : begin + len(data)], data)

    def wipe(self, begin: int, end: int) -> None:
        """Zero bytes on the device, on a stream of its own."""
        assert self._side is not None
        self._side.clear(self._bytes[begin:end])

    def part(self, begin: int, end: int) -> TorchMemory:
        """Some of the bytes."""
        return TorchMemory(self._bytes[begin:end], self._side)

    def write(self, begin: int, data: np.ndarray) -> None:
        """Copy bytes to the device."""
        self._bytes[begin : begin + len(data)] = torch.from_numpy(data).to(self._bytes.device)
        gpu.synchronize(self._bytes.device)

    def clear(self, begin: int, end: int) -> None:
        """Zero bytes on the device, before anything that is launched later."""
        self._bytes[begin:end].zero_()
        gpu.synchronize(self._bytes.device)

    def store_u32(self, begin: int, value: int) -> None:
        """Store a number from a small kernel on the current stream, which a graph may capture."""
        self._bytes[begin : begin + 4].view(torch.int32).fill_(value)

    def word(self, begin: int) -> tuple[Store, Store] | None:
        """The same for 64 bits; looks up the place once."""
        word = self._bytes[begin : begin + 8].view(torch.int64)
        return gpu.word_writer(word), word.fill_


Memory = HostMemory | TorchMemory


def allocate(size_bytes: int, device: str) -> Memory:
    """Memory on "cpu" or a torch device such as "cuda:3".

    Raises NoRoomError if there is too little.
    """
    try:
        if device == "cpu":
            return HostMemory.of_size(size_bytes)
        return TorchMemory.of_size(size_bytes, device)
    except (MemoryError, RuntimeError) as error:
        # torch.OutOfMemoryError is a RuntimeError; torch's other errors here speak for themselves.
        if isinstance(error, RuntimeError) and "out of memory" not in str(error).lower():
            raise
        raise NoRoomError(
            f"no room for a record arena of {size_bytes >> 20:,} MiB on {device}; "
            "give a smaller --arena-size"
        ) from error
