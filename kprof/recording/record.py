"""One recording: runs a workload with the recorder switched on and makes a capture of what its ranks leave behind.

    kprof record ──> run.kprof.unfinished/  <── every rank: started, Parquet, JSON; rank 0: alignment
         │                    │
         └─ starts CMD        └─ manifest.json written last, then renamed to run.kprof/

The two sides share a directory and two environment variables, nothing else, so any launcher works: torchrun
(`num_procs`), mpirun, srun, or a command that starts its own processes. Nothing here prints.

What was recorded is kept whatever happens to the workload. The first SIGINT is passed on, so that the workload
ends as it would without kprof and its recorders write their files; a second one kills it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import msgspec

import kprof
from kprof.abi import ArenaGeometry
from kprof.capture import directory as capture
from kprof.capture.directory import Capture
from kprof.capture.losses import describe_losses, name_ranks
from kprof.capture.manifest import FORMAT_VERSION, Alignment, Manifest, RankInfo, RankStarted
from kprof.errors import CaptureError, KprofError, OutputExistsError, WorkloadError
from kprof.recording.process import ARENA_BYTES_VARIABLE, RECORD_DIR_VARIABLE
from kprof.recording.recorder import DEFAULT_ARENA_BYTES
from kprof.recording.runs import Measured, Outcome, describe_exit, run_four_times, run_once

# The payload field `peer` of our kernels is 8 bits wide, and its largest value means "did not fit".
MAX_PROCS: Final = 255


@dataclass(frozen=True)
class RecordRequest:
    """What to run and where to put it. `num_procs` None starts the command once, as it is.

    `measure_overhead` runs it three times more, to say how much recording slows it down.
    """

    command: tuple[str, ...]
    output: Path
    num_procs: int | None = None
    arena_bytes: int = DEFAULT_ARENA_BYTES
    force: bool = False
    measure_overhead: bool = False


@dataclass(frozen=True)
class Recording:
    """A finished recording; `exit_code` is the workload's own, 128 + n when signal n killed it."""

    capture: Capture
    exit_code: int
    was_interrupted: bool

    @property
    def losses(self) -> tuple[str, ...]:
        """A sentence for everything that the capture lacks."""
        return describe_losses(self.capture.manifest)


def record(request: RecordRequest, on_start: Callable[[], None] = lambda: None) -> Recording:
    """Run the workload and return its capture; `on_start` is called when all is checked, before it runs.

    Raises WorkloadError (not started, or recorded nothing), OutputExistsError (before the workload starts)
    and CaptureError (the disk refuses). A workload that fails after recording is no error here: see
    `Recording.exit_code`.
    """
    ArenaGeometry.for_bytes(request.arena_bytes)
    arguments = launch_arguments(request.command, request.num_procs)
    created = _now_utc()
    with _unfinished_directory(request) as directory:
        on_start()
        environment = _environment(request, directory.absolute())
        if request.measure_overhead:
            with tempfile.TemporaryDirectory(prefix="kprof-overhead-") as scratch:
                outcome, measured = run_four_times(arguments, environment, Path(scratch))
        else:
            outcome, measured = run_once(arguments, environment), Measured()
        manifest = _manifest(request, directory, created, outcome)
        manifest = msgspec.structs.replace(
            manifest, overhead=measured.overhead, overhead_note=measured.note
        )
        finished = _finish(directory, request.output, manifest)
    return Recording(finished, outcome.exit_code, outcome.was_interrupted)


@contextlib.contextmanager
def session(output: Path, *, force: bool = False) -> Iterator[Path]:
    """Record from one's own code, without `kprof record` around it: yields the directory for `Recorder(...)`.

    The recorders (one per rank, threads of this process included) must be closed when the block ends; the capture
    is complete then. When the block raises, what was recorded is still kept and the error goes on.
    """
    request = RecordRequest(tuple(sys.argv), output, force=force)
    created, start_s = _now_utc(), time.monotonic()
    exit_code = 1
    with _unfinished_directory(request) as directory:
        try:
            yield directory
            exit_code = 0
        finally:
            outcome = Outcome(exit_code, False, time.monotonic() - start_s)
            if capture.read_rank_infos(directory) or exit_code == 0:
                manifest = _manifest(request, directory, created, outcome)
                _finish(directory, output, manifest)
            else:
                shutil.rmtree(directory, ignore_errors=True)


def launch_arguments(command: Sequence[str], num_procs: int | None) -> list[str]:
    """The argument vector that starts the workload; raises WorkloadError when it cannot be started."""
    arguments = list(command)
    if not arguments:
        raise WorkloadError("no command to record; write it after `--`: kprof record -- CMD")
    # `python` should be the one that has kprof, also when its environment is not activated.
    if arguments[0] in ("python", "python3"):
        arguments[0] = sys.executable
    _check_executable(arguments[0])
    if num_procs is None:
        return arguments
    _check_num_procs(num_procs)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_procs)]
    return [sys.executable, *launcher, "--no-python", *arguments]


@contextlib.contextmanager
def _unfinished_directory(request: RecordRequest) -> Iterator[Path]:
    """The directory that becomes the capture, locked; removed when there turns out to be nothing in it to keep."""
    _refuse_a_second_recording(request.output)
    directory = capture.begin_capture(request.output, request.force)
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory
    except WorkloadError:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _refuse_a_second_recording(output: Path) -> None:
    """Two recordings into one output would delete each other's files."""
    directory = output.with_name(output.name + capture.UNFINISHED_SUFFIX)
    if not directory.is_dir():
        return
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutputExistsError(
            f"another recording into {output} is running; wait for its end or choose another -o"
        ) from None
    finally:
        os.close(lock)


def _now_utc() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _check_executable(program: str) -> None:
    if shutil.which(program) is not None:
        return
    if Path(program).exists():
        raise WorkloadError(
            f"cannot start {program}: it is not an executable file; "
            f"chmod +x it, or name its interpreter: kprof record -- python {program}"
        )
    raise WorkloadError(
        f"cannot start {program}: no such command; check the spelling and the PATH, or give its path"
    )


def _check_num_procs(num_procs: int) -> None:
    if not 1 <= num_procs <= MAX_PROCS:
        raise WorkloadError(
            f"--nproc {num_procs} is out of range: give 1 to {MAX_PROCS}, because events name the rank on the "
            "other side in 8 bits, of which the last value means that it did not fit"
        )
    if importlib.util.find_spec("torch") is None:
        raise WorkloadError(
            '--nproc starts the ranks through torchrun, which is not installed; pip install "kprof[torch]", '
            "or leave --nproc out and start the ranks with a launcher of your own"
        )


def _environment(request: RecordRequest, directory: Path) -> dict[str, str]:
    environment = os.environ | {
        RECORD_DIR_VARIABLE: str(directory),
        ARENA_BYTES_VARIABLE: str(request.arena_bytes),
    }
    if request.num_procs is not None and request.num_procs > 1:
        # What torchrun would set anyway, but with a warning of five lines.
        environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def _manifest(
    request: RecordRequest, directory: Path, created_utc: str, outcome: Outcome
) -> Manifest:
    started = capture.read_ranks_started(directory)
    infos = capture.read_rank_infos(directory)
    if not infos:
        raise WorkloadError(_nothing_recorded(started, outcome), exit_code=outcome.exit_code or 1)
    world_size = max(
        [
            request.num_procs or 1,
            *(entry.world_size for entry in started),
            *(info.rank + 1 for info in infos),
        ]
    )
    finished = {info.rank for info in infos}
    missing = tuple(rank for rank in range(world_size) if rank not in finished)
    alignment, note = _alignment(directory, infos)
    return Manifest(
        format_version=FORMAT_VERSION,
        kprof_version=kprof.__version__,
        command=tuple(request.command),
        created_utc=created_utc,
        world_size=world_size,
        exit_code=outcome.exit_code,
        duration_s=outcome.duration_s,
        ranks=infos,
        missing_ranks=missing,
        alignment=alignment,
        alignment_note=note,
    )


def _nothing_recorded(started: Sequence[RankStarted], outcome: Outcome) -> str:
    end = f"the workload {describe_exit(outcome.exit_code)}"
    if started:
        return (
            f"{end} and none of its {len(started)} ranks finished writing its events, so there is no capture; "
            "their own messages say why, unless SIGKILL or os._exit ended them"
        )
    if outcome.exit_code:
        return (
            f"{end} before a kprof recorder had started, so there is no capture; "
            "its own messages say why; if there are none, make it run without kprof first"
        )
    return (
        f"{end} without creating a kprof recorder, so there is no capture; "
        "call kprof.recorder() in every rank and pass its buffer to the kernels"
    )


def _alignment(directory: Path, infos: Sequence[RankInfo]) -> tuple[Alignment | None, str]:
    """The alignment if it covers every rank, else a sentence that says why there is none."""
    try:
        alignment = capture.read_alignment(directory)
    except KprofError as error:
        return None, f"the clock calibration cannot be read: {error}"
    if alignment is None:
        if len(infos) == 1:
            return None, ""
        return None, "the workload ran no clock calibration: call Recorder.align(...) in every rank"
    without = sorted({info.rank for info in infos} - {entry.rank for entry in alignment.ranks})
    if without:
        return None, f"{name_ranks(without)} took no part in the clock calibration"
    return alignment, ""


def _finish(directory: Path, output: Path, manifest: Manifest) -> Capture:
    try:
        return capture.finish_capture(directory, output, manifest)
    except CaptureError as error:
        kept = directory if directory.exists() else output
        raise type(error)(f"{error}; the ranks' files are kept in {kept}") from error
