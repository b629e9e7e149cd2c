"""The one recorder of a process. The environment that `kprof record` sets turns it on, and it is
closed however the process ends.

kprof.recorder() is `recorder` here. Without `kprof record` around the workload it is off. It is
also off if the machine does not let it record (disk, memory, device, a rank that is taken), because
that must not end a workload.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kprof.devices import captures, gpu
from kprof.devices.apart import apart
from kprof.errors import (
    ArenaError,
    BuildError,
    CaptureError,
    ClockError,
    MissingPackageError,
    NoRoomError,
    RankTakenError,
    RecorderError,
    TargetError,
)
from kprof.recording.endings import complaints, lifetime
from kprof.recording.launches.launch_buffer import LaunchBuffer
from kprof.recording.launches.wanted import Schedule, Wanted
from kprof.recording.rank import saver
from kprof.recording.rank.null_recorder import AnyRecorder, NullRecorder, RefusedRecorder
from kprof.recording.rank.recorder import DEFAULT_ARENA_BYTES, Recorder
from kprof.recording.retention.retention import Retention

if TYPE_CHECKING:
    from kprof.recording.launches.delays import Delays
    from kprof.recording.rank.overhead import LaunchTimer
    from kprof.regions import RegionsLike

# `kprof record` sets these. Without RECORD_DIR_VARIABLE nothing is recorded.
RECORD_DIR_VARIABLE: Final = "KPROF_RECORD_DIR"
# `kprof record --measure-overhead` sets this, for runs with and without recording: where ranks
# write the times of their launches.
TIMINGS_DIR_VARIABLE: Final = "KPROF_TIMINGS_DIR"
ARENA_BYTES_VARIABLE: Final = "KPROF_ARENA_BYTES"
# What happens to events once they are recorded: a Retention in JSON.
RETENTION_VARIABLE: Final = "KPROF_RETENTION"
# The part of the run to record: a Wanted in JSON.
WANTED_VARIABLE: Final = "KPROF_WANTED"
# Refusals of the machine. Wrong arguments (regions, rank) are the workload's mistakes, and are
# raised.
_REFUSALS: Final = (
    ArenaError,
    BuildError,
    CaptureError,
    ClockError,
    MissingPackageError,
    RankTakenError,
    TargetError,
    # Limits of the process: no descriptor, no thread, no memory, also for what is imported.
    ImportError,
    OSError,
    RuntimeError,
    MemoryError,
)
# Where there is no memory for more, arenas are halved down to this.
_LEAST_ARENA_BYTES: Final = 1 << 20
_RANK_VARIABLES: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_SIZE_VARIABLES: Final = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# Ray sets this in its workers.
_RAY_VARIABLE: Final = "RAY_RAYLET_PID"


class _TimedNullRecorder(NullRecorder):
    """Off like NullRecorder, but times the launches: the A of `kprof record --measure-overhead`.

    It says that it is recording, so that workloads which check that report their launches, too.
    """

    is_recording = True

    def __init__(self, timer: LaunchTimer) -> None:
        self._timer = timer

    def launch(self, kernel: str, *arguments: Any, **geometry: Any) -> LaunchBuffer:
        """A null buffer. Takes the timestamp."""
        self._timer.mark(kernel)
        return super().launch(kernel, *arguments, **geometry)

    def close(self) -> None:
        """Write the timings; a second call does so again."""
        self._timer.finish()


_process_recorder: AnyRecorder | None = None
_pid_of_recorder = 0
_opening = threading.RLock()
_session_recorder: Recorder | None = None
_has_session = False


@contextlib.contextmanager
def in_session() -> Iterator[None]:
    """Keep other sessions of this process out. Raises RecorderError inside another one."""
    global _has_session
    with _opening:
        if _has_session:
            raise RecorderError("a session is open already; close it before the next one begins")
        _has_session = True
    try:
        yield
    finally:
        _has_session = False


@contextlib.contextmanager
def serving(active: Recorder) -> Iterator[None]:
    """Make `recorder` return this one within the context."""
    global _session_recorder
    _session_recorder = active
    try:
        yield
    finally:
        _session_recorder = None


def _forget_opening() -> None:
    """A child that another thread's opening was forked into has nobody who ends it; its parent's
    session is not its own."""
    global _opening, _has_session
    _opening = threading.RLock()
    _has_session = False


os.register_at_fork(after_in_child=_forget_opening)


def recorder(
    regions: RegionsLike = None,
    *,
    device: str = "cpu",
    rank: int | None = None,
    world_size: int | None = None,
    schedule: Schedule | None = None,
) -> AnyRecorder:
    """This process's recorder: recording under `kprof record`, off otherwise. Later calls return
    the same one.

    Unless given, rank and world size come from torchrun's variables, else from torch.distributed if
    it is initialised, else from variables of Slurm and MPI (but in workers of Ray these are those
    of whoever started Ray). Events are written at exit, also on SIGTERM and SIGINT. A forked child
    has no recorder until it calls this with its own rank. With a `schedule` (kprof.schedule) only
    some steps are recorded; `recorder.step()` ends a step. If recording is impossible, the recorder
    is off and one line on stderr says why. So it is for the kernels of another GPU than its own.
    """
    global _process_recorder, _pid_of_recorder
    # Also a torch.device.
    device = str(device)
    if _session_recorder is not None:
        return _for_kernels_on(device, _session_recorder)
    directory, timings = (
        os.environ.get(name) for name in (RECORD_DIR_VARIABLE, TIMINGS_DIR_VARIABLE)
    )
    if not directory and not timings:
        return NullRecorder()
    # Threads may make their first launches at the same moment.
    with _opening:
        if _process_recorder is None or _pid_of_recorder != os.getpid():
            if _must_wait(device):
                return NullRecorder()
            rank, world_size = _place(rank, world_size)
            make = partial(Recorder, regions=regions, device=device, schedule=schedule)
            make = partial(make, rank=rank, world_size=world_size)
            timer = _timer(Path(timings), rank, device) if timings else None
            _process_recorder = _first_recorder(make, directory, rank, timer)
            _pid_of_recorder = os.getpid()
        return _for_kernels_on(device, _process_recorder)


def _for_kernels_on(device: str, active: AnyRecorder) -> AnyRecorder:
    """The recorder, off for a GPU other than its device: memory of another one is a fault there."""
    if device == "cpu" or active.device in ("", device, gpu.with_number(device)):
        return active
    _tell_of_device(device, active.device)
    return NullRecorder()


def _tell_of_device(device: str, recorded: str) -> None:
    hint = "; name it at first: kprof.recorder(device='cuda')" if recorded == "cpu" else ""
    complaints.complain_once(
        f"what runs on {device} is not recorded: a process records one device, this one "
        f"{recorded}{hint}"
    )


def _first_recorder(
    make: partial[Recorder], directory: str | None, rank: int, timer: LaunchTimer | None
) -> AnyRecorder:
    # Before the recorder announces itself, because it may be told to stop at once.
    lifetime.end_well_on_signals()
    saver.start()
    if directory:
        return _open(make, Path(directory), rank, timer)
    if timer is None:
        return NullRecorder()
    timed = _TimedNullRecorder(timer)
    lifetime.close_at_exit(timed)
    return timed


def _open(
    make: partial[Recorder], directory: Path, rank: int, timer: LaunchTimer | None
) -> AnyRecorder:
    """A recorder as `kprof record` wants it, off where the machine refuses."""
    import msgspec

    try:
        make = partial(
            make,
            directory,
            timer=timer,
            wanted=msgspec.json.decode(os.environ.get(WANTED_VARIABLE, "{}"), type=Wanted),
            delays=delays_of_environment(),
            retention=msgspec.json.decode(os.environ.get(RETENTION_VARIABLE, "{}"), type=Retention),
        )
        return apart(make.keywords["device"], partial(_largest, make, _arena_bytes()))
    except (*_REFUSALS, msgspec.MsgspecError) as error:
        if isinstance(error, TimeoutError) and error.errno is None:
            # A signal handler of the workload's has raised it.
            raise
        complaints.tell(directory, f"rank {rank} records nothing: {error}")
        return RefusedRecorder()


def delays_of_environment() -> Delays | None:
    """What `kprof verify` wants to last longer; None without it."""
    import msgspec

    from kprof.devices.build import DELAYS_VARIABLE

    text = os.environ.get(DELAYS_VARIABLE)
    if not text:
        return None
    from kprof.recording.launches.delays import Delays

    return msgspec.json.decode(text, type=Delays)


def _must_wait(device: str) -> bool:
    """Whether opening a recorder now would break a graph that is being captured."""
    if device == "cpu":
        return False
    if gpu.is_capturing():
        complaints.complain_once(
            "launches in a graph are not recorded, because the first launch came while it was "
            "captured; launch once before the capture, or call kprof.recorder(device=...)"
        )
        return True
    if captures.go_on():
        complaints.complain_once(
            "launches are not recorded while another thread captures a graph, because the first "
            "one came meanwhile; call kprof.recorder(device=...) before"
        )
        return True
    return False


def _largest(make: partial[Recorder], arena_bytes: int) -> Recorder:
    """A recorder whose arena is as large as asked for or, if there is less memory, a part of it."""
    wanted_bytes = arena_bytes
    while True:
        try:
            recorder = make(arena_bytes=arena_bytes)
        except NoRoomError:
            arena_bytes //= 2
            if arena_bytes < _LEAST_ARENA_BYTES:
                raise
            continue
        if arena_bytes < wanted_bytes:
            text = (
                f"no room for an arena of {wanted_bytes >> 20:,} MiB on {make.keywords['device']}; "
                f"it has {arena_bytes >> 20:,} MiB"
            )
            recorder.note(text)
            complaints.complain(f"rank {recorder.rank}: {text}")
        return recorder


def process_records() -> bool:
    """Whether this process has a recorder that records, or can get one because it runs under `kprof
    record`."""
    return RECORD_DIR_VARIABLE in os.environ or lifetime.has_open_recorders()


def _timer(directory: Path, rank: int, device: str) -> LaunchTimer | None:
    from kprof.recording.rank.overhead import LaunchTimer

    if not directory.is_dir():
        complaints.complain(
            f"rank {rank} times no launches: {TIMINGS_DIR_VARIABLE}={directory} is not a directory"
        )
        return None
    return LaunchTimer(directory, rank, device)


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size, where they were not given by what is known of this process."""
    named = 1 if _RAY_VARIABLE in os.environ else None
    known = (
        _from_environment(_RANK_VARIABLES[:named], 0),
        _from_environment(_WORLD_SIZE_VARIABLES[:named], 1),
    )
    dist = sys.modules.get("torch.distributed")
    is_begun = dist is not None and dist.is_available() and dist.is_initialized()
    if dist is not None and is_begun and _RANK_VARIABLES[0] not in os.environ:
        known = dist.get_rank(), dist.get_world_size()
    rank = known[0] if rank is None else rank
    return rank, max(rank + 1, known[1]) if world_size is None else world_size


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
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ArenaError(f"{ARENA_BYTES_VARIABLE}={text!r} is not a number of bytes")
    return int(text)
