"""The compiled kernels of a source on one device, and their launches: the base of all plans."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from instrumented_kernels.kernel_library import (
    KernelBuilds,
    KernelLibrary,
    KernelSource,
    Launch,
    LaunchSequence,
    build_options,
)
from kprof.devices import gpu
from kprof.recording.null_recorder import AnyRecorder, NullRecorder
from kprof.regions import RegionTable

if TYPE_CHECKING:
    from kprof.devices.build import BuildOptions

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
        self, *, device: str, timeout_s: float, schedule_seed: int, options: BuildOptions | None
    ) -> None:
        self.device = gpu.with_number(device)
        self.options = options or build_options(self.device)
        self.regions = RegionTable.from_header(self.source.folder / "regions.h")
        with self.on_device():
            self._builds = KernelBuilds(self._load, self.options)
            self._library = self._builds.plain
        self._timeout_ticks = int(timeout_s * self._library.ticks_per_second)
        self._schedule_seed = schedule_seed
        self._num_calls = 0
        self._current_stream = gpu.stream_reader(self.device)
        self._is_elsewhere = gpu.elsewhere_reader(self.device)

    @classmethod
    def _load(cls, options: BuildOptions) -> KernelLibrary:
        return KernelLibrary(cls.source, options)

    def on_device(self) -> contextlib.AbstractContextManager[None]:
        """A context in which the plan's device is the current one."""
        return gpu.made_current(self.device)

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
