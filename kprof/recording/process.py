"""The one recorder of a process: found by the environment that `kprof record` sets, closed however the process ends.

kprof.recorder() in a workload is `recorder` here; without `kprof record` around the workload it is off.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from kprof.errors import RecorderError
from kprof.recording.interrupts import ignore_signals
from kprof.recording.recorder import (
    DEFAULT_ARENA_BYTES,
    LaunchBuffer,
    NullRecorder,
    Recorder,
    Regions,
    has_open_recorders,
)

if TYPE_CHECKING:
    from kprof.recording.overhead import LaunchTimer

# Set by `kprof record` for the workload; without RECORD_DIR_VARIABLE nothing is recorded.
RECORD_DIR_VARIABLE: Final = "KPROF_RECORD_DIR"
# Set by `kprof record --measure-overhead`, with and without recording: where ranks leave how long their launches took.
TIMINGS_DIR_VARIABLE: Final = "KPROF_TIMINGS_DIR"
ARENA_BYTES_VARIABLE: Final = "KPROF_ARENA_BYTES"
_RANK_VARIABLES: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_SIZE_VARIABLES: Final = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


class _TimedNullRecorder(NullRecorder):
    """Off like NullRecorder, but times the launches: the A of `kprof record --measure-overhead`.

    It calls itself recording, so that workloads that ask tell it of their launches too.
    """

    is_recording = True

    def __init__(self, timer: LaunchTimer | None) -> None:
        self._timer = timer

    def launch(self, kernel: str, *arguments: Any, **geometry: Any) -> LaunchBuffer:
        """A null buffer, and the moment noted."""
        if self._timer is not None:
            self._timer.mark(kernel)
        return super().launch(kernel, *arguments, **geometry)

    def close(self) -> None:
        """Write the timings; a second call does nothing."""
        if self._timer is not None:
            self._timer.finish()
            self._timer = None


_process_recorder: Recorder | _TimedNullRecorder | None = None


def recorder(
    regions: Regions = None,
    *,
    device: str = "cpu",
    rank: int | None = None,
    world_size: int | None = None,
) -> Recorder | NullRecorder:
    """This process's recorder: recording under `kprof record`, off otherwise. Later calls return the same one.

    Rank and world size come from the launcher's environment (torchrun, Slurm, MPI) unless given. What was recorded is
    written at exit, on SIGTERM and on SIGINT too.
    """
    global _process_recorder
    directory, timings = (
        os.environ.get(name) for name in (RECORD_DIR_VARIABLE, TIMINGS_DIR_VARIABLE)
    )
    if not directory and not timings:
        return NullRecorder()
    if _process_recorder is None:
        rank = _from_environment(_RANK_VARIABLES, 0) if rank is None else rank
        timer = _timer(Path(timings), rank, device) if timings else None
        if directory:
            _process_recorder = Recorder(
                Path(directory),
                rank=rank,
                world_size=_from_environment(_WORLD_SIZE_VARIABLES, 1)
                if world_size is None
                else world_size,
                regions=regions,
                device=device,
                arena_bytes=_arena_bytes(),
                timer=timer,
            )
        else:
            _process_recorder = _TimedNullRecorder(timer)
        _close_at_exit(_process_recorder)
    return _process_recorder


def process_records() -> bool:
    """Whether this process has a recorder that records, or `kprof record` started it so that it may ask for one."""
    return RECORD_DIR_VARIABLE in os.environ or has_open_recorders()


def _timer(directory: Path, rank: int, device: str) -> LaunchTimer:
    from kprof.recording.overhead import LaunchTimer

    return LaunchTimer(directory, rank, device)


def _close_at_exit(active: Recorder | _TimedNullRecorder) -> None:
    """SIGTERM (torchrun stops the others when one rank fails) must end the process by way of atexit."""
    atexit.register(_close_undisturbed, active)
    if threading.current_thread() is threading.main_thread():
        previous = signal.getsignal(signal.SIGTERM)
        if previous in (signal.SIG_DFL, None):
            signal.signal(signal.SIGTERM, _exit_on_sigterm)


def _close_undisturbed(active: Recorder | _TimedNullRecorder) -> None:
    """A rank that ends because another one died is also sent SIGTERM, while it writes what it recorded."""
    ignore_signals()
    active.close()


def _exit_on_sigterm(number: int, frame: FrameType | None) -> None:
    del frame
    raise SystemExit(128 + number)


def _from_environment(names: Sequence[str], default: int) -> int:
    for name in names:
        if name in os.environ:
            try:
                return int(os.environ[name])
            except ValueError:
                raise RecorderError(
                    f"{name}={os.environ[name]!r} is not a number; pass rank and world_size"
                ) from None
    return default


def _arena_bytes() -> int:
    text = os.environ.get(ARENA_BYTES_VARIABLE, str(DEFAULT_ARENA_BYTES))
    if not text.isdigit():
        raise RecorderError(f"{ARENA_BYTES_VARIABLE}={text!r} is not a number of bytes")
    return int(text)
