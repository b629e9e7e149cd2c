"""The calls that workloads and kernels make on a recorder, and the recorder that is off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from kprof.recording.launch_buffer import NULL_BUFFER, LaunchBuffer

if TYPE_CHECKING:
    from kprof.groups import Group
    from kprof.regions import RegionsLike

DEFAULT_ALIGN_EVERY_S: Final = 2.0


class AnyRecorder(Protocol):
    """A recorder, on (Recorder) or off (NullRecorder). Recorder documents the calls."""

    is_recording: bool

    def launch(
        self,
        kernel: str,
        regions: RegionsLike = None,
        *,
        num_blocks: int = 0,
        threads_per_block: int = 0,
        tracks_per_block: int = 0,
        is_replayed: bool = False,
    ) -> LaunchBuffer:
        """The buffer for the next launch of `kernel`."""

    def finished(self) -> None:
        """All launches so far have finished."""

    def explain_timeout(self, waited_s: float) -> str:
        """Why kernels have given up waiting, where that is known."""

    def pause(self) -> None:
        """Record nothing from here on."""

    def resume(self) -> None:
        """Record again."""

    def step(self) -> None:
        """End a step of the workload."""

    def dump(self, why: str) -> None:
        """Ask all ranks to write what their rings hold."""

    def align(self, group: Group) -> None:
        """Calibrate the ranks' clocks against each other."""

    def align_if_due(self, group: Group, every_s: float = DEFAULT_ALIGN_EVERY_S) -> bool:
        """Calibrate if the last calibration is about `every_s` old; True if it did."""

    def note(self, text: str) -> None:
        """Keep a sentence about this rank in the capture."""

    def torch_trace(self, profile: object) -> None:
        """Keep what the PyTorch profiler saw in the capture."""

    def flush(self) -> None:
        """Write what the arena holds and empty it."""

    def close(self) -> None:
        """Write everything; a second call does nothing."""


class NullRecorder:
    """The recorder outside of `kprof record`: every call does nothing, every buffer is null."""

    is_recording = False

    def launch(
        self,
        kernel: str,
        regions: RegionsLike = None,
        *,
        num_blocks: int = 0,
        threads_per_block: int = 0,
        tracks_per_block: int = 0,
        is_replayed: bool = False,
    ) -> LaunchBuffer:
        """A null buffer."""
        del kernel, regions, num_blocks, threads_per_block, tracks_per_block, is_replayed
        return NULL_BUFFER

    def finished(self) -> None:
        """Nobody asks."""

    def explain_timeout(self, waited_s: float) -> str:
        """Nothing is known."""
        del waited_s
        return ""

    def pause(self) -> None:
        """Nothing to pause."""

    def resume(self) -> None:
        """Nothing to resume."""

    def step(self) -> None:
        """No schedule to tell."""

    def dump(self, why: str) -> None:
        """No ring to write."""
        del why

    def align(self, group: Group) -> None:
        """Nothing to align."""

    def align_if_due(self, group: Group, every_s: float = DEFAULT_ALIGN_EVERY_S) -> bool:
        """Nothing to align."""
        del group, every_s
        return False

    def note(self, text: str) -> None:
        """Nowhere to write it."""

    def torch_trace(self, profile: object) -> None:
        """Nowhere to keep it."""

    def flush(self) -> None:
        """Nothing to flush."""

    def close(self) -> None:
        """Nothing to close."""
