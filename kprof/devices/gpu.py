"""All that kprof asks of a GPU's runtime, through torch.cuda, which serves ROCm too.

A device is "cpu" or a torch device such as "cuda:3". On "cpu" there is nothing to wait for: a
launch returns when it has finished.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from kprof.devices.on_use import torch
from kprof.on_use import np


def synchronize(device: str | torch.device | None = None) -> None:
    """Wait for everything on the device, the current GPU where none is given."""
    if str(device) == "cpu":
        return
    torch.cuda.synchronize(device)


def make_current(device: str) -> None:
    """Make this thread launch on that GPU."""
    torch.cuda.set_device(device)


def stream_reader(device: str) -> Callable[[], int | None]:
    """A function that returns torch's current stream of `device`, as fast as the host can: launches
    on it stay in order with the caller's other work."""
    if device == "cpu":
        return lambda: None
    # The same as torch.cuda.current_stream().cuda_stream, whose object takes longer than a launch
    # may.
    return partial(torch._C._cuda_getCurrentRawStream, torch.device(device).index)


def elsewhere_reader(device: str) -> Callable[[], bool]:
    """A function that tells whether another device is current, as fast as the host can."""
    if device == "cpu":
        return lambda: False
    number, current = torch.device(device).index, torch._C._cuda_getDevice
    return lambda: current() != number


@contextlib.contextmanager
def made_current(device: str) -> Iterator[None]:
    """Makes a device the current one for a while."""
    if device == "cpu":
        yield
        return
    with torch.cuda.device(device):
        yield


def with_number(device: str) -> str:
    """The device with its number: "cuda" is the current one. It stays as it is where torch has no
    GPU."""
    if device == "cpu" or ":" in device:
        return device
    # Torch raises many kinds of exceptions then.
    with contextlib.suppress(Exception):
        return f"{device}:{torch.cuda.current_device()}"
    return device


def follow(device: str, previous: int) -> None:
    """Make later launches on the current stream wait for all launches so far on `previous`."""
    torch.cuda.current_stream(device).wait_stream(_stream(previous, device))


def _stream(number: int, device: str) -> Any:
    """Torch's object for a stream of the runtime."""
    # 0 is the default stream, for which ExternalStream makes a new one.
    if number == 0:
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(number, device=device)  # type: ignore[no-untyped-call]


def is_capturing() -> bool:
    """Whether the current stream is being captured in a CUDA graph; false where no GPU is used."""
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def capture_reader(device: str) -> Callable[[], bool]:
    """A function that tells whether the current stream is captured, as fast as the host can."""
    if device == "cpu":
        # bool() is False, and faster than a function of ours.
        return bool
    # torch.cuda.is_current_stream_capturing without a function of Python around it.
    return torch._C._cuda_isCurrentStreamCapturing


def properties_of(device: str) -> Any:
    """Torch's properties of a GPU."""
    return torch.cuda.get_device_properties(device)


def pci_address_of(properties: Any) -> str:
    """As in /sys/bus/pci/devices: 0000:1b:00.0; "" from a torch that does not say."""
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    if not all(hasattr(properties, name) for name in names):
        return ""
    domain, bus, device = (getattr(properties, name) for name in names)
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def note_moment(device: str) -> Any:
    """A point in the device's current stream, for `elapsed_us`."""
    if device == "cpu":
        return time.perf_counter_ns()
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def elapsed_us(begin: Any, end: Any) -> float:
    """Microseconds between two points of one device, after everything on it has finished."""
    if isinstance(begin, int):
        return float(end - begin) / 1e3
    return float(begin.elapsed_time(end)) * 1e3


def copier(source: str, target: str, size_bytes: int) -> Callable[[], None]:
    """A function that copies `size_bytes` from a GPU to another, or itself, and waits for it."""
    origin = torch.zeros(size_bytes, dtype=torch.uint8, device=source)
    goal = torch.empty(size_bytes, dtype=torch.uint8, device=target)

    def copy() -> None:
        goal.copy_(origin)
        synchronize(source)
        synchronize(target)

    return copy


_REGISTER_PORTABLE_AND_MAPPED: Final = 1 | 2


def register_host_memory(address: int, size_bytes: int, device: str) -> int:
    """Let kernels of all GPUs write to memory of this process; returns its address for kernels.

    `address` and `size_bytes` are multiples of the page size. Raises RuntimeError where the runtime
    refuses.
    """
    with made_current(device):
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = int(runtime.cudaHostRegister(address, size_bytes, _REGISTER_PORTABLE_AND_MAPPED))
        if error:
            # The next launch would report what the runtime remembers of this.
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=device)
            raise RuntimeError(f"host memory cannot be registered (error {error})")
    return address if torch.version.hip is None else _hip_address(address)


def unregister_host_memory(content: np.ndarray, device: str) -> None:
    """Undo `register_host_memory` for the memory that begins with `content`."""
    # After a fault of the GPU the runtime refuses everything.
    with contextlib.suppress(RuntimeError), made_current(device):
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        runtime.cudaHostUnregister(int(content.ctypes.data))


def _hip_address(address: int) -> int:
    """The address at which AMD GPUs see registered memory; CUDA has one for both."""
    runtime = ctypes.CDLL("libamdhip64.so")
    pointer = ctypes.c_void_p()
    error = runtime.hipHostGetDevicePointer(
        ctypes.byref(pointer), ctypes.c_void_p(address), ctypes.c_uint(0)
    )
    if error or not pointer.value:
        raise RuntimeError(f"registered memory has no address on the GPU (error {error})")
    return pointer.value


def word_writer(word: torch.Tensor) -> Callable[[int], object]:
    """A function that stores a number in a tensor of one int64, in order with the current stream.

    NVIDIA's driver does so without a kernel, in a third of the host's time. No graph may
    capture it.
    """
    try:
        write = ctypes.CDLL("libcuda.so.1").cuStreamWriteValue64_v2
    except (OSError, AttributeError):
        return word.fill_
    write.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint]
    address, current = word.data_ptr(), stream_reader(str(word.device))

    def store(number: int) -> None:
        # Not every device can.
        if write(current(), address, number, 0):
            word.fill_(number)

    return store


# Large enough for the bandwidth of the link, small enough to be pinned in every recorder.
_STAGING_BYTES: Final = 4 << 20


class SideCopy:
    """Copies device memory to the host while a kernel runs or hangs, and another thread waits for
    it.

    Everything is allocated at creation: an allocation may wait for running kernels.
    """

    def __init__(self, device: torch.device) -> None:
        self._staging = torch.empty(_STAGING_BYTES, dtype=torch.uint8, pin_memory=True)
        # torch's own streams do not wait for the default stream.
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, source: torch.Tensor) -> np.ndarray:
        """The bytes of a uint8 tensor as they are now."""
        target = np.empty(len(source), dtype=np.uint8)
        with torch.cuda.stream(self._stream):
            for begin in range(0, len(source), _STAGING_BYTES):
                piece = source[begin : begin + _STAGING_BYTES]
                staged = self._staging[: len(piece)]
                staged.copy_(piece, non_blocking=True)
                self._stream.synchronize()
                target[begin : begin + len(piece)] = staged.numpy()
        return target

    def write(self, target: torch.Tensor, data: np.ndarray) -> None:
        """Copy bytes into a uint8 tensor, which no running kernel uses."""
        with torch.cuda.stream(self._stream):
            for begin in range(0, len(target), _STAGING_BYTES):
                piece = target[begin : begin + _STAGING_BYTES]
                staged = self._staging[: len(piece)]
                staged.numpy()[:] = data[begin : begin + len(piece)]
                piece.copy_(staged, non_blocking=True)
                self._stream.synchronize()

    def clear(self, target: torch.Tensor) -> None:
        """Zero a uint8 tensor, which no running kernel uses."""
        with torch.cuda.stream(self._stream):
            target.zero_()
            self._stream.synchronize()


class Streams:
    """The streams of a GPU on which one thread launches; on "cpu" there is none."""

    def __init__(self, device: str) -> None:
        self._device = with_number(device)
        self.current = stream_reader(self._device)
        self.seen: set[int] = set()

    def note(self) -> int | None:
        """The next launch goes to the current stream, which is returned."""
        if (stream := self.current()) is not None:
            self.seen.add(stream)
        return stream

    def moment(self) -> Callable[[], bool]:
        """A function that tells whether all that was launched so far on the noted streams ended.

        It waits for nothing, and any thread may call it.
        """
        if self._device == "cpu":
            return lambda: True
        events: list[Any] = []
        for number in self.seen:
            event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(_stream(number, self._device))
            events.append(event)
        return lambda: all(event.query() for event in events)


# CUDA and HIP number it alike.
_CAPTURE_MODE_RELAXED: Final = 2


def ignore_captures() -> None:
    """Let this thread call the runtime while another thread captures a graph.

    Without it, a call that a capture forbids to all threads makes the capture fail.
    """
    name, call = (
        ("libamdhip64.so", "hipThreadExchangeStreamCaptureMode")
        if torch.version.hip
        else ("libcuda.so.1", "cuThreadExchangeStreamCaptureMode")
    )
    mode = ctypes.c_int(_CAPTURE_MODE_RELAXED)
    with contextlib.suppress(OSError, AttributeError):
        getattr(ctypes.CDLL(name), call)(ctypes.byref(mode))
