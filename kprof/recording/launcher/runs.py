"""Runs of a workload: once, or A-B-B-A to measure what recording costs it.

Nothing here knows what a capture is.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kprof.capture import journal
from kprof.capture.manifest import Overhead
from kprof.errors import CaptureError, WorkloadError
from kprof.hangs import DEFAULT_HANG_AFTER_S
from kprof.hangs.watch import Directory, HangWatch, Watch, hang_after_of
from kprof.nccl.plugin import DIR_VARIABLE
from kprof.nccl.stalls import CollectivesWatch
from kprof.recording.finishing.outcome import Outcome, describe_exit
from kprof.recording.launcher.forwarding import forwarding_signals
from kprof.recording.launcher.stopping import RecordingRanks, Say
from kprof.recording.rank.overhead import KernelTiming, compare_runs, read_timings
from kprof.recording.rank.process import (
    RECORD_DIR_VARIABLE,
    RETENTION_VARIABLE,
    TIMINGS_DIR_VARIABLE,
)
from kprof.recording.retention.retention import Retention

# Off, on, on, off: a drift of the machine that is even in time falls on both alike.
_OVERHEAD_RUNS: Final = ("off-1", "on-1", "on-2", "off-2")
_KEPT_RUN: Final = "on-1"


@dataclass(frozen=True)
class MeasuredOverhead:
    """What --measure-overhead found, or a sentence that says why there is nothing."""

    overhead: Overhead | None = None
    note: str = ""


def run_once(
    arguments: Sequence[str],
    environment: dict[str, str],
    directory: Path,
    say: Say = lambda _: None,
    *,
    is_quiet: bool = False,
) -> Outcome:
    """Run the workload in a session of its own, with our open files, and wait until all ended.

    Signals go to the workload, and to the ranks that record into `directory`.
    """
    start_s = time.monotonic()
    ranks = RecordingRanks(directory, say)
    with forwarding_signals(ranks) as forwarder, _watching(environment, say):
        try:
            # Files that the caller opened (`3>log` in a shell) are meant for the workload; ours are
            # not inheritable.
            process = subprocess.Popen(
                arguments,
                env=environment,
                start_new_session=True,
                close_fds=False,
                stdout=subprocess.DEVNULL if is_quiet else None,
            )
        except OSError as error:
            raise WorkloadError(
                f"cannot start {arguments[0]}: {error.strerror or error}; "
                "check that it runs without kprof"
            ) from error
        forwarder.attach(process)
        code = process.wait()
        exit_code = 128 - code if code < 0 else code
        ranks.wait(exit_code)
    return Outcome(exit_code, forwarder.was_interrupted, time.monotonic() - start_s)


@contextlib.contextmanager
def _watching(environment: dict[str, str], say: Say) -> Iterator[None]:
    """Watch for a run that hangs, where that is wanted; a hang dumps the rings."""
    directory, after_s = environment.get(RECORD_DIR_VARIABLE), hang_after_of(environment)
    if directory is None or not after_s:
        yield
        return
    # By default nobody asked to be told of a run that merely launches nothing.
    is_patient = after_s == DEFAULT_HANG_AFTER_S
    retention = msgspec.json.decode(environment.get(RETENTION_VARIABLE, "{}"), type=Retention)

    def dump(diagnosis: str) -> None:
        # A disk that refuses ends neither the watch nor the workload.
        with contextlib.suppress(CaptureError):
            journal.say(Path(directory), None, journal.Dump(f"hang: {diagnosis}"))

    on_hang = dump if retention.ring_bytes else lambda _: None
    watches = [Watch(Directory(Path(directory)), after_s, is_patient=is_patient)]
    if DIR_VARIABLE in environment:
        watches.append(CollectivesWatch(Path(directory), after_s))
    threads = [HangWatch(watch, Path(directory), say, on_hang) for watch in watches]
    try:
        yield
    finally:
        for thread in threads:
            thread.close()


def run_four_times(
    arguments: Sequence[str],
    environment: dict[str, str],
    scratch: Path,
    say: Say = lambda _: None,
) -> tuple[Outcome, MeasuredOverhead]:
    """Run the workload A-B-B-A.

    The outcome is that of the recording that is kept, the first of two.
    """
    timings: dict[str, list[KernelTiming]] = {}
    kept: Outcome | None = None
    failure = ""
    for name in _OVERHEAD_RUNS:
        if failure and name != _KEPT_RUN:
            continue
        own = _environment_of_run(name, environment, scratch)
        # A run that only times its launches has no ranks in its directory.
        directory = own.get(RECORD_DIR_VARIABLE) or own[TIMINGS_DIR_VARIABLE]
        outcome = run_once(arguments, own, Path(directory), say)
        kept = outcome if name == _KEPT_RUN else kept
        if outcome.was_interrupted:
            return kept or outcome, MeasuredOverhead(note="the runs were interrupted")
        if outcome.exit_code and not failure:
            failure = f"run {name} {describe_exit(outcome.exit_code)}"
        timings[name] = read_timings(scratch / name)
    assert kept is not None
    if failure:
        return kept, MeasuredOverhead(note=failure)
    off, on = (
        [timings[name] for name in timings if name.startswith(kind)] for kind in ("off", "on")
    )
    overhead = compare_runs(off, on)
    note = "" if overhead else "no kernel was launched through a kprof recorder in all four runs"
    return kept, MeasuredOverhead(overhead, note)


def _environment_of_run(name: str, environment: dict[str, str], scratch: Path) -> dict[str, str]:
    """Timings go to a folder of the run; only the kept run records into the capture."""
    timings = scratch / name
    timings.mkdir()
    environment = environment | {TIMINGS_DIR_VARIABLE: str(timings)}
    if name.startswith("off"):
        del environment[RECORD_DIR_VARIABLE]
    elif name != _KEPT_RUN:
        environment[RECORD_DIR_VARIABLE] = str(timings)
    return environment
