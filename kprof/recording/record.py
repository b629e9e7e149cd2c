"""One recording: runs a workload with the recorder switched on and makes a capture of what its
ranks leave behind.

    kprof record ──> run.kprof.unfinished/  <── all ranks: started, Parquet, JSON; rank 0: alignment
         │                    │
         └─ starts CMD        └─ manifest.json written last, then renamed to run.kprof/

The two sides share a directory and two environment variables, nothing else, so any launcher works:
torchrun (`num_procs`), mpirun, srun, or a command that starts its own processes. Nothing here
prints.

What was recorded is kept whatever happens to the workload. The first SIGINT is passed on, so that
the workload ends as it would without kprof and its recorders write their files; a second one kills
it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kprof.abi import ArenaGeometry
from kprof.capture import directory as capture
from kprof.capture.claims import Begun, prepare_messages, ranks_in_use, write_begun
from kprof.capture.directory import Capture
from kprof.capture.losses import describe_losses, name_ranks
from kprof.errors import WorkloadError
from kprof.recording.finishing import finish, make_manifest
from kprof.recording.hangs import HANG_AFTER_VARIABLE
from kprof.recording.lifetime import open_recorders
from kprof.recording.process import (
    ARENA_BYTES_VARIABLE,
    RECORD_DIR_VARIABLE,
    WANTED_VARIABLE,
)
from kprof.recording.recorder import DEFAULT_ARENA_BYTES
from kprof.recording.recover import locked, now_utc, refuse_open_ranks
from kprof.recording.runs import Measured, Outcome, describe_exit, run_four_times, run_once
from kprof.recording.stopping import Say, processes_of
from kprof.recording.wanted import EVERYTHING, Wanted

# The payload field `peer` of our kernels is 8 bits wide, and its largest value means "did not fit".
MAX_PROCS: Final = 255


@dataclass(frozen=True)
class RecordRequest:
    """What to run and where to put it. `num_procs` None starts the command once, as it is.

    `measure_overhead` runs it three times more, to say how much recording slows it down. Every
    Python of the workload runs the sitecustomize.py of `startup_dir` first.
    """

    command: tuple[str, ...]
    output: Path
    num_procs: int | None = None
    arena_bytes: int = DEFAULT_ARENA_BYTES
    force: bool = False
    measure_overhead: bool = False
    startup_dir: Path | None = None
    wanted: Wanted = EVERYTHING
    hang_after_s: float = 0.0


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


def record(
    request: RecordRequest,
    on_start: Callable[[], None] = lambda: None,
    say: Say = lambda _: None,
) -> Recording:
    """Run the workload and return its capture; `on_start` is called when all is checked, before it
    runs.

    `say` gets a sentence whenever the workload does not simply end. Raises WorkloadError (not
    started, recorded nothing, or ranks still run), OutputExistsError (before the workload starts)
    and CaptureError (the disk refuses). A workload that fails after recording is no error here: see
    `Recording.exit_code`.
    """
    ArenaGeometry.for_bytes(request.arena_bytes)
    arguments = launch_arguments(request.command, request.num_procs)
    with _unfinished_directory(request) as (directory, begun):
        on_start()
        environment = _environment(request, directory.absolute())
        if request.measure_overhead:
            with tempfile.TemporaryDirectory(prefix="kprof-overhead-") as scratch:
                outcome, measured = run_four_times(arguments, environment, Path(scratch), say)
        else:
            outcome, measured = run_once(arguments, environment, say), Measured()
        _refuse_running_ranks(directory, outcome)
        manifest = make_manifest(directory, begun, outcome)
        manifest = msgspec.structs.replace(
            manifest, overhead=measured.overhead, overhead_note=measured.note
        )
        finished = finish(directory, request.output, manifest)
    return Recording(finished, outcome.exit_code, outcome.was_interrupted)


@contextlib.contextmanager
def session(output: Path, *, force: bool = False) -> Iterator[Path]:
    """Record from one's own code, without `kprof record` around it: yields the directory for
    `Recorder(...)`.

    Recorders of this process (one per rank, threads included) that are still open when the block
    ends are closed. When the block raises, what was recorded is kept and the error goes on.
    """
    request = RecordRequest(tuple(sys.argv), output, force=force)
    start_s = time.monotonic()
    exit_code = 1
    with _unfinished_directory(request) as (directory, begun):
        try:
            yield directory
            exit_code = 0
        finally:
            for recorder in open_recorders(directory):
                recorder.close()
            outcome = Outcome(exit_code, False, time.monotonic() - start_s)
            with contextlib.suppress(*([WorkloadError] if exit_code else [])):
                finish(directory, output, make_manifest(directory, begun, outcome))


def _refuse_running_ranks(directory: Path, outcome: Outcome) -> None:
    ranks = ranks_in_use(directory)
    if ranks:
        raise WorkloadError(
            f"the workload {describe_exit(outcome.exit_code)} and {name_ranks(ranks)} still run; "
            "when they have ended, "
            f"kprof recover {directory} makes a capture",
            exit_code=outcome.exit_code or 1,
        )


def launch_arguments(command: Sequence[str], num_procs: int | None) -> list[str]:
    """The argument vector that starts the workload.

    Raises WorkloadError when it cannot be started.
    """
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
def _unfinished_directory(request: RecordRequest) -> Iterator[tuple[Path, Begun]]:
    """The directory that becomes the capture, locked.

    Removed when there is nothing in it and nobody can add to it.
    """
    directory = request.output.with_name(request.output.name + capture.UNFINISHED_SUFFIX)
    if directory.is_dir():
        # Two recordings into one output would delete each other's files.
        with locked(directory):
            refuse_open_ranks(directory)
    capture.begin_capture(request.output, request.force)
    begun = Begun(tuple(request.command), now_utc(), request.num_procs or 1)
    with locked(directory):
        try:
            write_begun(directory, begun)
            prepare_messages(directory)
            yield directory, begun
        except WorkloadError as error:
            late = processes_of(directory)
            if not late and not ranks_in_use(directory):
                shutil.rmtree(directory, ignore_errors=True)
                raise
            raise WorkloadError(_kept_for(late, directory, error), error.exit_code) from error


def _kept_for(processes: Sequence[int], directory: Path, error: WorkloadError) -> str:
    """Never delete a directory into which somebody may still write."""
    if "kprof recover" in str(error):
        return str(error)
    named = ", ".join(map(str, processes))
    return (
        f"{error}; but it left processes that may still record ({named}): when they have ended, "
        f"kprof recover {directory} makes a capture of what they record"
    )


def _check_executable(program: str) -> None:
    if shutil.which(program) is not None:
        return
    if Path(program).exists():
        raise WorkloadError(
            f"cannot start {program}: it is not an executable file; "
            f"chmod +x it, or name its interpreter: kprof record -- python {program}"
        )
    raise WorkloadError(
        f"cannot start {program}: no such command; "
        "check the spelling and the PATH, or give its path"
    )


def _check_num_procs(num_procs: int) -> None:
    if not 1 <= num_procs <= MAX_PROCS:
        raise WorkloadError(
            f"--nproc {num_procs} is out of range: give 1 to {MAX_PROCS}, because events name the "
            "rank on the other side in 8 bits, of which the last value means that it did not fit"
        )
    if importlib.util.find_spec("torch") is None:
        raise WorkloadError(
            "--nproc starts the ranks through torchrun, which is not installed; "
            'pip install "kprof[torch]", or leave --nproc out and start the ranks with '
            "a launcher of your own"
        )


def _environment(request: RecordRequest, directory: Path) -> dict[str, str]:
    environment = os.environ | {
        RECORD_DIR_VARIABLE: str(directory),
        ARENA_BYTES_VARIABLE: str(request.arena_bytes),
        WANTED_VARIABLE: request.wanted.to_text(),
        HANG_AFTER_VARIABLE: str(request.hang_after_s),
    }
    if request.startup_dir is not None:
        others = environment.get("PYTHONPATH")
        first = str(request.startup_dir)
        environment["PYTHONPATH"] = f"{first}{os.pathsep}{others}" if others else first
    if request.num_procs is not None and request.num_procs > 1:
        # What torchrun would set anyway, but with a warning of five lines.
        environment.setdefault("OMP_NUM_THREADS", "1")
    return environment
