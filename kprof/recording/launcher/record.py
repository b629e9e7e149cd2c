"""One recording: runs a workload with the recorder on and makes a capture from what its ranks
write.

    kprof record ──> run.kprof.unfinished/  <── all ranks: started, Parquet, JSON; rank 0: alignment
         │                    │
         └─ starts CMD        └─ manifest.json written last, then renamed to run.kprof/

The two sides share a directory and two environment variables, nothing else, so any launcher works:
torchrun (`num_procs`), mpirun, srun, or a command that starts its own processes. Nothing here
prints.

Whatever happens to the workload, what was recorded is kept. The first SIGINT is forwarded, so that
the workload ends as it would without kprof and its recorders write their files; a second one kills
it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from kprof.capture import directory as capture
from kprof.capture import journal
from kprof.capture.claims import launch_counts, ranks_in_use
from kprof.capture.directory import Capture
from kprof.capture.journal import Begun, begin_journal
from kprof.capture.losses import describe_losses, last_notes, name_ranks
from kprof.capture.manifest import RankInfo
from kprof.capture.names import unfinished_of
from kprof.capture.output import writing
from kprof.capture.printable import utf8
from kprof.capture.processes import wait_until
from kprof.capture.shared_memory import discard, make_memory, memory_of
from kprof.capture.started import pids_here
from kprof.devices.build import DELAYS_VARIABLE
from kprof.errors import CaptureError, StillRecordingError, WorkloadError, require
from kprof.hangs.watch import HANG_AFTER_VARIABLE
from kprof.nccl.capture import has_collectives
from kprof.nccl.keeping import SlowestCalls, snapshot
from kprof.nccl.plugin import NOT_LOADED, environment_for, replaced_plugin
from kprof.recording.arenas.turns import geometry_of
from kprof.recording.endings.lifetime import open_recorders
from kprof.recording.finishing.finishing import HOW_TO_RECORD, ending_with, keeping, make_manifest
from kprof.recording.finishing.outcome import Outcome, describe_exit
from kprof.recording.finishing.recover import in_brackets, locked, now_utc, refuse_open_ranks
from kprof.recording.launcher.runs import MeasuredOverhead, run_four_times, run_once
from kprof.recording.launcher.stopping import Say, processes_of
from kprof.recording.launches.delays import Delays
from kprof.recording.launches.wanted import EVERYTHING, Wanted
from kprof.recording.rank.process import (
    ARENA_BYTES_VARIABLE,
    RECORD_DIR_VARIABLE,
    RETENTION_VARIABLE,
    WANTED_VARIABLE,
)
from kprof.recording.rank.recorder import DEFAULT_ARENA_BYTES
from kprof.recording.retention.retention import EVERYTHING_THAT_FITS, NO_RING, Retention

# The payload field `peer` of our kernels has 8 bits, and its largest value means "did not fit".
MAX_PROCS: Final = 255
# Ranks with different numbers of launches have different reasons for having no events.
_MOST_REASONS: Final = 3
# What multiprocessing leaves behind takes a moment to end.
_LATE_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True)
class RecordRequest:
    """What to run and where to write it. `num_procs` None starts the command once, as it is.

    `measure_overhead` runs it three more times, to measure how much recording slows it down. Every
    Python process of the workload first runs the sitecustomize.py in `startup_dir`, and every NCCL
    or RCCL loads the plugin `nccl_plugin` (see kprof.nccl). `delays` make spans last longer. One
    that `is_quiet` prints to nowhere but stderr. Of one that `is_foreign` the exit code counts,
    whatever becomes of the capture.
    """

    command: tuple[str, ...]
    output: Path
    num_procs: int | None = None
    arena_bytes: int = DEFAULT_ARENA_BYTES
    force: bool = False
    measure_overhead: bool = False
    startup_dir: Path | None = None
    nccl_plugin: Path | None = None
    wanted: Wanted = EVERYTHING
    hang_after_s: float = 0.0
    retention: Retention = EVERYTHING_THAT_FITS
    delays: Delays | None = None
    is_quiet: bool = False
    is_foreign: bool = False


@dataclass(frozen=True)
class Recording:
    """A finished recording. `exit_code` is the workload's own, or 128 + n if signal n killed it."""

    capture: Capture
    exit_code: int
    was_interrupted: bool

    @property
    def losses(self) -> tuple[str, ...]:
        """One sentence for each thing that is missing in the capture."""
        return describe_losses(self.capture.manifest)


def record(
    request: RecordRequest,
    on_start: Callable[[], None] = lambda: None,
    say: Say = lambda _: None,
) -> Recording:
    """Run the workload and return its capture. Calls `on_start` after all checks, before it runs.

    `say` gets a sentence whenever the workload does not end by itself. Raises WorkloadError (it did
    not start, it recorded nothing, or ranks still run), OutputExistsError (before the workload
    starts) and CaptureError (the disk refuses). A workload that fails after recording is not an
    error here: see `Recording.exit_code`.
    """
    require("pyarrow", "recording")
    retention = request.retention
    geometry_of(retention.total_bytes(request.arena_bytes), retention.num_arenas)
    arguments = launch_arguments(request.command, request.num_procs)
    output = request.output
    with _unfinished_directory(request) as (directory, begun), keeping(directory, output):
        on_start()
        _dump_on_signal(directory, request, say)
        environment = _environment(request, directory.absolute())
        if request.measure_overhead:
            with tempfile.TemporaryDirectory(prefix="kprof-overhead-") as scratch:
                outcome, measured = run_four_times(arguments, environment, Path(scratch), say)
        else:
            environment |= _prepared_memory(request, directory, say)
            with _keeping_slowest(request, directory):
                outcome = run_once(
                    arguments, environment, directory, say, is_quiet=request.is_quiet
                )
            measured = MeasuredOverhead()
        with ending_with(outcome.exit_code or int(not request.is_foreign)):
            finished = _finish(request, directory, begun, outcome, measured)
    return Recording(finished, outcome.exit_code, outcome.was_interrupted)


def _finish(
    request: RecordRequest,
    directory: Path,
    begun: Begun,
    outcome: Outcome,
    measured: MeasuredOverhead,
) -> Capture:
    _refuse_running_ranks(directory, outcome)
    manifest = make_manifest(directory, begun, outcome, _how_to_record(request))
    manifest = msgspec.structs.replace(
        manifest,
        overhead=measured.overhead,
        overhead_note=measured.note,
        num_procs=request.num_procs or 0,
        messages=(
            *manifest.messages,
            *_never_ran(request.wanted, manifest.world_size),
            *_left_out_all(request.wanted, manifest.ranks),
            *_no_collectives(request, manifest.ranks),
        ),
    )
    return capture.finish_capture(directory, request.output, manifest, force=request.force)


def _how_to_record(request: RecordRequest) -> str:
    """What to do where no rank had a recorder. A foreign workload may have nothing to record."""
    if request.nccl_plugin is not None:
        return NOT_LOADED
    return "" if request.is_foreign else HOW_TO_RECORD


def _never_ran(wanted: Wanted, world_size: int) -> list[str]:
    """A sentence about the ranks to record that the run did not have."""
    absent = [rank for rank in wanted.ranks if rank >= world_size]
    return [f"--ranks names {name_ranks(absent)} in a run of {world_size}"] if absent else []


def _left_out_all(wanted: Wanted, infos: Sequence[RankInfo]) -> list[str]:
    """Why no rank has events, as those say that were to have some; else nothing."""
    if wanted == EVERYTHING or any(info.has_events for info in infos):
        return []
    return last_notes([info for info in infos if wanted.has_rank(info.rank)])[:_MOST_REASONS]


def _prepared_memory(request: RecordRequest, directory: Path, say: Say) -> dict[str, str]:
    """Make the memory that ranks share; returns what makes NCCL load the plugin, where that is
    wanted."""
    if reason := make_memory(directory):
        say(f"what ranks share is on the disk: {reason}")
    if request.nccl_plugin is None:
        return {}
    if replaced := replaced_plugin():
        say(replaced)
    memory = memory_of(directory.absolute()) or directory.absolute()
    ring_bytes = request.retention.ring_bytes
    return environment_for(
        request.nccl_plugin,
        memory,
        ring_bytes or request.arena_bytes,
        sample=request.wanted.sample,
        keeps_latest=bool(ring_bytes),
        keep_slowest=request.retention.keep_slowest,
    )


@contextlib.contextmanager
def _keeping_slowest(request: RecordRequest, directory: Path) -> Iterator[None]:
    """Keep the slowest collectives meanwhile, where that is wanted."""
    if request.nccl_plugin is None or not request.retention.keep_slowest:
        yield
        return
    calls = SlowestCalls(directory, request.retention.keep_slowest)
    calls.start()
    try:
        yield
    finally:
        calls.close()


def _no_collectives(request: RecordRequest, infos: Sequence[RankInfo]) -> list[str]:
    """A sentence where nothing of NCCL was recorded that should have been."""
    if request.nccl_plugin is None or any(map(has_collectives, infos)):
        return []
    return [NOT_LOADED]


def _dump_on_signal(directory: Path, request: RecordRequest, say: Say) -> None:
    """SIGUSR1 for kprof itself makes all ranks write their rings, and saves those of NCCL.

    Without rings it must not end kprof, which is what it does to a process by default.
    """
    has_ring = request.retention.ring_bytes
    has_nccl = request.nccl_plugin is not None and not request.retention.keep_slowest

    def ask(number: int, frame: FrameType | None) -> None:
        del number, frame
        if not has_ring and not has_nccl:
            say(f"SIGUSR1 writes nothing: {NO_RING}")
        try:
            if has_nccl:
                say(f"SIGUSR1: {snapshot(directory):,} events of NCCL are saved")
            if has_ring:
                journal.say(directory, None, journal.Dump("SIGUSR1"))
        except CaptureError as error:
            say(f"SIGUSR1: {error}")

    # Only the main thread may; elsewhere somebody else handles signals.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGUSR1, ask)


@contextlib.contextmanager
def session(output: Path, *, force: bool = False) -> Iterator[Path]:
    """Record without `kprof record`: yields the directory to pass to `Recorder(...)`.

    When the block ends, this process's open recorders are closed, those of other threads too. If
    the block raises, what was recorded is kept and the error propagates; the directory goes where
    nothing was.
    """
    request = RecordRequest(tuple(sys.argv), output, force=force)
    start_s = time.monotonic()
    exit_code = 1
    with _unfinished_directory(request) as (directory, begun):
        manifest = None
        try:
            make_memory(directory)
            try:
                yield directory
                exit_code = 0
            finally:
                for recorder in open_recorders(directory):
                    recorder.close()
                outcome = Outcome(exit_code, False, time.monotonic() - start_s)
                try:
                    with keeping(directory, output):
                        manifest = make_manifest(directory, begun, outcome)
                except WorkloadError:
                    if not exit_code:
                        raise
                    _remove_unused(directory)
        finally:
            if manifest is not None:
                with keeping(directory, output):
                    capture.finish_capture(directory, output, manifest, force=force)


def _remove_unused(directory: Path) -> None:
    """Remove a directory that no rank has launched anything into."""
    if not any(launch_counts(directory).values()) and not ranks_in_use(directory):
        discard(directory)


def _refuse_running_ranks(directory: Path, outcome: Outcome) -> None:
    ranks = ranks_in_use(directory)
    if ranks:
        raise StillRecordingError(
            f"the workload {describe_exit(outcome.exit_code)} and {name_ranks(ranks)} still "
            f"{'runs; when it has' if len(ranks) == 1 else 'run; when they have'} ended, "
            f"kprof recover {directory} makes a capture",
            exit_code=outcome.exit_code or 1,
        )


def launch_arguments(command: Sequence[str], num_procs: int | None) -> list[str]:
    """The argument vector that starts the workload.

    Raises WorkloadError if it cannot be started.
    """
    arguments = list(command)
    if not arguments:
        raise WorkloadError("no command to record; write it after `--`: kprof record -- CMD")
    # `python` means the one that has kprof, even if its environment is not activated.
    if arguments[0] in ("python", "python3"):
        arguments[0] = sys.executable
    _check_executable(arguments[0])
    if num_procs is None:
        return arguments
    _check_num_procs(num_procs)
    options = ["--standalone", "--nproc-per-node", str(num_procs), "--no-python"]
    return [*module_command("torch.distributed.run"), *options, *arguments]


def module_command(name: str) -> list[str]:
    """`python -m NAME`, without the current directory among the places of modules: whoever can
    write there would have his code run by whoever records there."""
    code = (
        "import runpy, sys; sys.path = [place for place in sys.path if place]; "
        f"runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", code]


@contextlib.contextmanager
def _unfinished_directory(request: RecordRequest) -> Iterator[tuple[Path, Begun]]:
    """The directory that becomes the capture, locked.

    It is removed if it is empty and nobody can write to it any more.
    """
    directory = unfinished_of(request.output)
    # The workload may remove the folder that we are in.
    whole = directory.absolute()
    if directory.is_dir():
        # Two recordings into the same output would delete each other's files.
        with locked(directory):
            refuse_open_ranks(directory)
    capture.begin_capture(request.output, request.force)
    command = tuple(map(utf8, request.command))
    begun = Begun(command, now_utc(), request.num_procs or 1)
    with locked(directory):
        try:
            _prepare(directory, begun)
            yield directory, begun
        except WorkloadError as error:
            wait_until(lambda: not processes_of(whole), _LATE_TIMEOUT_S)
            late, ranks = processes_of(whole), ranks_in_use(directory)
            if not late and not ranks:
                if capture.has_events(directory):
                    text = f"{error}; the ranks' files are kept in {directory}"
                    raise type(error)(text, error.exit_code) from error
                discard(directory)
                raise
            # Ranks of a session were not started for it: their environment does not tell.
            late = late or sorted(pids_here(directory, ranks).values())
            raise type(error)(_kept_for(late, directory, error), error.exit_code) from error


def _prepare(directory: Path, begun: Begun) -> None:
    """Write what a recording starts with; the directory goes again where the disk refuses."""
    try:
        with writing(directory):
            begin_journal(directory, begun)
    except CaptureError:
        discard(directory)
        raise


def _kept_for(processes: Sequence[int], directory: Path, error: WorkloadError) -> str:
    """Keep a directory that processes may still write to."""
    if isinstance(error, StillRecordingError):
        return str(error)
    return (
        f"{error}; but something may still record{in_brackets(processes)}: when that has ended, "
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
            "pip install torch, or leave --nproc out and start the ranks with "
            "a launcher of your own"
        )


def _environment(request: RecordRequest, directory: Path) -> dict[str, str]:
    environment = os.environ | {
        RECORD_DIR_VARIABLE: str(directory),
        ARENA_BYTES_VARIABLE: str(request.arena_bytes),
        WANTED_VARIABLE: msgspec.json.encode(request.wanted).decode(),
        HANG_AFTER_VARIABLE: str(request.hang_after_s),
        RETENTION_VARIABLE: msgspec.json.encode(request.retention).decode(),
    }
    if request.delays is not None:
        environment[DELAYS_VARIABLE] = msgspec.json.encode(request.delays).decode()
    if request.startup_dir is not None:
        others = environment.get("PYTHONPATH")
        first = str(request.startup_dir)
        environment["PYTHONPATH"] = f"{first}{os.pathsep}{others}" if others else first
    if request.num_procs is not None and request.num_procs > 1:
        # torchrun sets this anyway, but prints five lines of warning.
        environment.setdefault("OMP_NUM_THREADS", "1")
    return environment
