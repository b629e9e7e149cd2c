"""The compiled kernels of a source on one device, and their launches: the base of all plans."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from instrumented_kernels.kernel_library import (
    KernelBuilds,
    KernelLibrary,
    KernelSource,
    Launch,
    LaunchSequence,
    build_options,
)
from instrumented_kernels.layouts import Failure, Layout
from kprof.devices import gpu
from kprof.devices.build import BuildOptions
from kprof.devices.on_use import torch
from kprof.devices.targets import Target
from kprof.recording.rank.null_recorder import AnyRecorder, NullRecorder
from kprof.regions import RegionTable

DEFAULT_TIMEOUT_S: Final = 5.0
NOT_RECORDING: Final = NullRecorder()


class DevicePlan:
    """Builds of one kernel source for `device`: "cpu" or a torch device, which need not be the
    current one.

    `options` are the build's, by default those for the device. `schedule_seed` is of the CPU
    target's interleaving.
    """

    source: ClassVar[KernelSource]

    def __init__(
        self,
        device: str = "cpu",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        schedule_seed: int = 0,
        options: BuildOptions | None = None,
    ) -> None:
        self.device = gpu.with_number(device)
        self.options = options or build_options(self.device)
        self.regions = RegionTable.from_header(self.source.folder / "regions.h")
        with self.on_device():
            self._builds = KernelBuilds(self._load, self.options)
            self._library = self._builds.plain
            self._pinned = None if self.device == "cpu" else _pinned(ctypes.sizeof(Failure))
        # Kernels report here. It can be read without waiting for them.
        self._failure: Layout = (
            Failure() if self._pinned is None else Failure.from_address(self._pinned.data_ptr())
        )
        self._timeout_ticks = int(timeout_s * self._library.ticks_per_second)
        self._schedule_seed = schedule_seed
        self._num_calls = 0
        # For plans that prepare calls once for each kind, and those that several threads call.
        self._prepared: dict[Any, Any] = {}
        self._lock = threading.Lock()
        self._current_stream = gpu.stream_reader(self.device)
        self._is_elsewhere = gpu.elsewhere_reader(self.device)

    @classmethod
    def _load(cls, options: BuildOptions) -> KernelLibrary:
        return KernelLibrary(cls.source, options)

    @property
    def is_on_cpu(self) -> bool:
        """Whether the CPU target runs calls. There grids are chosen for their traces, not for
        speed."""
        return self.options.target is Target.CPU

    def wait(self) -> None:
        """Wait for all calls on this rank. Raises their failures: ValueError for input that a
        kernel refused, PeerTimeoutError or BlockTimeoutError for a wait that took too long."""
        gpu.synchronize(self.device)
        self._raise_failure()

    def prepare_recording(self) -> None:
        """Load the instrumented build, if the recorder was created after the plan.

        Otherwise the first recorded call does it.
        """
        with self.on_device():
            _ = self._builds.instrumented

    def on_device(self) -> contextlib.AbstractContextManager[None]:
        """A context in which the plan's device is the current one."""
        return gpu.made_current(self.device)

    def _filled(self, shape: Layout, **own: Any) -> Layout:
        """The CallArguments of calls of this shape. `own` are the fields that kernels do not
        share."""
        return self.source.call(
            shape=shape,
            timeout_ticks=self._timeout_ticks,
            failure=ctypes.addressof(self._failure),
            **own,
        )

    def _raise_failure(self) -> None:
        """Raise each failure that kernels reported to the host, once."""
        raise NotImplementedError

    def _refusal(self, refused: int) -> Exception:
        """The error for input that a kernel refused, for kernels that check it."""
        raise NotImplementedError

    def _sequence(self, launches: Sequence[Launch]) -> LaunchSequence:
        return LaunchSequence(self._builds, launches, self.regions, self.source.tracks_per_block)

    def _launch(self, sequence: LaunchSequence, recorder: AnyRecorder, stream: int | None) -> None:
        """Launch a call on a stream of the plan's device."""
        seed = self._schedule_seed and self._schedule_seed + 131 * self._num_calls
        if self._is_elsewhere():
            with self.on_device():
                sequence.run(recorder, stream, seed)
        else:
            sequence.run(recorder, stream, seed)


def _pinned(num_bytes: int) -> Any:
    """Zeroed host memory that kernels can write."""
    return torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True)
