"""`kprof verify`: is a finding the cause? The workload runs again, with delays in its kernels.

Each round runs it once without a delay and once with each length of it, in an order that changes
from round to round. Whatever drifts meanwhile falls on all of them alike.
"""

from __future__ import annotations

import math
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pandas as pd

from kprof.analysis import Finding, Limit, Summary, find
from kprof.analysis.calls import call_lengths, launches_of_calls
from kprof.analysis.findings.experiment import Experiment, experiment_of, judge
from kprof.analysis.wording import counted, duration
from kprof.capture.database import sql_text
from kprof.capture.directory import Capture
from kprof.capture.manifest import Manifest
from kprof.capture.verified import Verified, keep_verified
from kprof.errors import SelectionError, WorkloadError
from kprof.recording.finishing.outcome import describe_exit
from kprof.recording.finishing.recover import now_utc
from kprof.recording.launcher.record import RecordRequest, record
from kprof.recording.launches.delays import Delays
from kprof.report.in_trace import find as find_among
from kprof.trace import Trace

Progress = Callable[[str, float], None]
# Fewer, drawn again, say too little about themselves.
MIN_ROUNDS: Final = 5
MAX_ROUNDS: Final = 100


@dataclass(frozen=True)
class Proof:
    """What was tried, with which command and in how many ranks of torchrun, and how often."""

    finding: Finding
    experiment: Experiment
    command: tuple[str, ...]
    num_procs: int | None
    num_rounds: int

    @property
    def delayed(self) -> str:
        """Which spans lasted longer, and by how much."""
        here = self.experiment
        where = "everywhere else" if here.is_at_others else "there"
        sizes = " and ".join(duration(ns) for ns in here.delays_ns[1:])
        rounds = counted(self.num_rounds, "round", "rounds")
        times = f"{rounds} of {len(here.delays_ns)} runs"
        return f"each span of {here.region} {where}, by {sizes}; {times}"


def prepare(
    run: Path,
    which: str,
    *,
    command: Sequence[str] = (),
    num_procs: int | None = None,
    num_rounds: int = 5,
) -> Proof:
    """What to try for a finding, by its id or number in the report.

    `command` and `num_procs` are by default those of the recording. Raises SelectionError for what
    cannot be tried, and a CaptureError for what is no capture.
    """
    if not MIN_ROUNDS <= num_rounds <= MAX_ROUNDS:
        raise SelectionError(f"--rounds {num_rounds}: give {MIN_ROUNDS} to {MAX_ROUNDS}")
    trace = Trace.open(run)
    manifest = trace.manifest
    _check_recorded(run, manifest, command)
    summary = Summary.of(trace)
    shown = find(summary).shown
    if not shown:
        raise SelectionError(f"{run} has no finding to verify")
    finding: Finding | Limit = find_among(shown, which)
    experiment = experiment_of(summary, finding)
    assert isinstance(finding, Finding)
    if not command:
        num_procs = num_procs or manifest.num_procs or None
    return Proof(finding, experiment, tuple(command) or manifest.command, num_procs, num_rounds)


def _check_recorded(run: Path, manifest: Manifest, command: Sequence[str]) -> None:
    if not any(info.arena.size_bytes for info in manifest.ranks):
        raise SelectionError(
            f"{run} was imported, so that kprof cannot delay its kernels; verify a recording of "
            "`kprof record`"
        )
    if not command and not manifest.command:
        raise SelectionError(
            f"{run} does not say what was recorded; give the command: kprof verify {run} -- CMD"
        )


def verify(proof: Proof, run: Path, progress: Progress = lambda _what, _share: None) -> Verified:
    """Run the command and say what that shows; the capture keeps it.

    Raises WorkloadError where the command fails, or is another one than was recorded.
    """
    experiment, manifest = proof.experiment, Capture.open(run).manifest
    sizes, rounds = range(len(experiment.delays_ns)), range(proof.num_rounds)
    lengths: dict[tuple[int, int], pd.Series[float]] = {}
    shortest: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="kprof-verify-") as scratch:
        for number in rounds:
            # Every size comes first as often as last.
            order = [(number + i) % len(sizes) for i in sizes][:: -1 if number % 2 else 1]
            for turn, size in enumerate(order):
                share = (number + turn / len(sizes)) / proof.num_rounds
                progress(f"round {number + 1} of {proof.num_rounds}", share)
                trace = _record(proof, manifest, Path(scratch), experiment.delays_ns[size])
                lengths[size, number] = _lengths_ns(trace, experiment)
                shortest[size] = _shortest_ns(trace, experiment)
            if not number:
                _check_delayed(experiment, shortest[0], shortest[sizes[-1]])
    # Calls are rows, and a run has a column.
    table = pd.concat([lengths[size, number] for size in sizes for number in rounds], axis=1)
    is_common = table.reindex(experiment.calls).notna().all(axis=1).to_numpy()
    if not is_common.any():
        raise WorkloadError(
            "the runs have none of the calls that the finding is about; give the command that was "
            "recorded, with as many calls"
        )
    columns = table.reindex(experiment.calls)[is_common].to_numpy(dtype=float).T
    verified = judge(
        replace(experiment, promised_ns=experiment.promised_ns[:, is_common]),
        columns.reshape(len(sizes), len(rounds), -1),
        finding=proof.finding.id,
        command=proof.command,
        created_utc=now_utc(),
    )
    keep_verified(run, verified)
    return verified


def _record(proof: Proof, manifest: Manifest, scratch: Path, delay_ns: float) -> Trace:
    """Record the command once, with such a delay."""
    experiment = proof.experiment
    request = RecordRequest(
        proof.command,
        scratch / "run.kprof",
        force=True,
        num_procs=proof.num_procs,
        arena_bytes=max(info.arena.size_bytes for info in manifest.ranks),
        delays=Delays(experiment.region, delay_ns, experiment.blocks),
        is_quiet=True,
    )
    recording = record(request)
    if recording.was_interrupted:
        raise KeyboardInterrupt
    shown = shlex.join(proof.command)
    if recording.exit_code:
        delayed = f"with delays of {duration(delay_ns)}" if delay_ns else "without delays"
        raise WorkloadError(
            f"{shown} {describe_exit(recording.exit_code)} {delayed}; run it without kprof first"
        )
    trace = Trace.open(recording.capture)
    if trace.manifest.world_size != manifest.world_size:
        ranks = counted(trace.manifest.world_size, "rank", "ranks")
        raise WorkloadError(
            f"{shown} ran in {ranks}, and the recording in {manifest.world_size}; "
            "give --nproc, or the command that starts all ranks"
        )
    if any(info.counts.dropped for info in trace.ranks):
        raise WorkloadError(
            f"{shown} recorded more than fits the arena; verify a recording of the whole run, with "
            "an --arena-size that holds it"
        )
    if manifest.is_on_one_clock and not trace.is_on_one_clock:
        raise WorkloadError(f"{shown} did not put its ranks on one clock, as it did when recorded")
    return trace


def _lengths_ns(trace: Trace, experiment: Experiment) -> pd.Series[float]:
    """The length of every call, by its ordinal."""
    summary = Summary.of(trace)
    if experiment.pause_ns is not None:
        ends = launches_of_calls(summary).groupby("ordinal")["last_ns"].max()
        return ends.diff() - experiment.pause_ns
    return call_lengths(summary).astype(float)


def _shortest_ns(trace: Trace, experiment: Experiment) -> float:
    """The shortest of the spans that are delayed; infinite without any."""
    places = " OR ".join(
        f"(rank = {rank} AND block >= {first} AND block < {end})"
        for rank, ranges in experiment.blocks.items()
        for first, end in ranges
    )
    region = sql_text(experiment.region)
    sql = f"SELECT min(duration_ns) FROM events WHERE region = {region} AND ({places})"
    _, [(shortest_ns,)] = trace.rows(sql)
    return math.inf if shortest_ns is None else float(shortest_ns)


def _check_delayed(experiment: Experiment, without_ns: float, with_ns: float) -> None:
    """Raise WorkloadError where the kernels took no delays, by the shortest span."""
    if not with_ns - without_ns >= experiment.delays_ns[-1] / 2:
        raise WorkloadError(
            f"spans of {experiment.region} lasted no longer with a delay: build the kernels with "
            "-DKPROF_DELAYS=1 (kprof's builder and Triton do so by themselves). Spans of kp.span() "
            "take no delays, those of short tracks do if they end with profile_now(prof, region)"
        )
