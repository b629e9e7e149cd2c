"""The calls that workloads and kernels make on a recorder, and the recorder that is off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kprof.recording.endings import complaints
from kprof.recording.launches.launch_buffer import NULL_BUFFER, LaunchBuffer

if TYPE_CHECKING:
    from kprof.devices.groups import Group
    from kprof.recording.arenas.turns import Room
    from kprof.recording.launches.whole_launch import Whole, Words
    from kprof.regions import RegionsLike

DEFAULT_ALIGN_EVERY_S: Final = 2.0


class AnyRecorder:
    """A recorder, on (Recorder, which documents the calls) or off (NullRecorder). Calls that are
    not overridden do nothing, and buffers are null."""

    is_recording = False
    # Whose kernels can write to its memory; empty where nothing is written.
    device = ""

    def launch(
        self,
        kernel: str,
        regions: RegionsLike = None,
        *,
        num_blocks: int = 0,
        threads_per_block: int = 0,
        tracks_per_block: int = 0,
        is_replayed: bool = False,
        shares_chunks: bool = False,
    ) -> LaunchBuffer:
        """The buffer for the next launch of `kernel`."""
        del kernel, regions, num_blocks, threads_per_block, tracks_per_block
        del is_replayed, shares_chunks
        return NULL_BUFFER

    def launch_whole(self, whole: Whole, stream: int | None) -> Words | None:
        """The words of the next launch, on `stream`, of a kernel whose blocks have one event each;
        None where it is not recorded."""
        del stream
        blocks = whole.num_blocks
        launch = self.launch(whole.name, whole.regions, num_blocks=blocks, shares_chunks=True)
        return whole.words_of(launch) if launch.arena else None

    def finished(self) -> None:
        """All launches so far have finished."""

    def explain_timeout(self, waited_s: float) -> str:
        """Why kernels have given up waiting, where that is known."""
        del waited_s
        return ""

    def pause(self) -> None:
        """Record nothing from here on."""

    def resume(self) -> None:
        """Record again."""

    def note_capture(self, *, is_end: bool) -> Room | None:
        """The capture of a graph begins or ends; at its end, what `note_replay` wants of it."""
        del is_end
        return None

    def note_replay(self, graph: int = 0, room: Room | None = None) -> None:
        """A graph is about to be replayed on the current stream."""

    def note_replayed(self, graph: int, room: Room | None, *, was_ready: bool) -> None:
        """A graph was replayed on the current stream."""

    def step(self) -> None:
        """End a step of the workload."""

    def dump(self, why: str) -> None:
        """Ask all ranks to write what their rings hold."""

    def align(self, group: Group) -> None:
        """Calibrate the ranks' clocks against each other."""

    def align_if_due(self, group: Group, every_s: float = DEFAULT_ALIGN_EVERY_S) -> bool:
        """Calibrate if the last calibration is about `every_s` old; True if it did."""
        del group, every_s
        return False

    def note(self, text: str) -> None:
        """Keep a sentence about this rank in the capture."""

    def torch_trace(self, profile: object) -> None:
        """Keep what the PyTorch profiler saw in the capture."""

    def flush(self) -> None:
        """Write what the arena holds and empty it."""

    def close(self) -> None:
        """Write everything; a second call does nothing."""

    def close_at_exit(self) -> None:
        """Close when the process ends. Never raises: a failure is one line on stderr."""
        try:
            self.close()
        except Exception as error:
            complaints.complain(str(error))


class NullRecorder(AnyRecorder):
    """The recorder outside of `kprof record`: every call does nothing, every buffer is null."""

    def launch(
        self,
        kernel: str,  # noqa: ARG002
        regions: RegionsLike = None,  # noqa: ARG002
        num_blocks: int = 0,  # noqa: ARG002
        threads_per_block: int = 0,  # noqa: ARG002
        tracks_per_block: int = 0,  # noqa: ARG002
        is_replayed: bool = False,  # noqa: ARG002
        shares_chunks: bool = False,  # noqa: ARG002
    ) -> LaunchBuffer:
        """A null buffer.

        A program that is not recorded pays for this: keywords that may come by position are filled
        in faster.
        """
        return NULL_BUFFER


class RefusedRecorder(NullRecorder):
    """The recorder of a rank that `kprof record` waits for and the machine refused. Other ranks may
    record: the first calibration tells them that this one has no clock to calibrate."""

    def __init__(self) -> None:
        self._has_told = False

    def align(self, group: Group) -> None:
        """Collective, the first time."""
        if not self._has_told and group.world_size > 1:
            self._has_told = True
            group.all_gather(False)

    def align_if_due(self, group: Group, every_s: float = DEFAULT_ALIGN_EVERY_S) -> bool:
        """The first call is due."""
        del every_s
        self.align(group)
        return False
