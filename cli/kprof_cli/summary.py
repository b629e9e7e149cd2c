"""The six lines that end a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kprof.trace.limits import MAX_EVENTS_AFTER_RECORDING
from kprof_cli.output import format_bytes, format_ns, program

if TYPE_CHECKING:
    from kprof.recording.launcher.record import Recording
    from kprof.trace import Trace


def summary_lines(recording: Recording) -> tuple[str, str, str, str, str, str]:
    """Capture, events, time, losses, first finding, next command."""
    from kprof.trace import Trace

    capture = recording.capture
    trace = Trace.open(capture)
    num_events = sum(info.counts.recorded for info in capture.manifest.ranks)
    return (
        f"capture  {capture.path} ({format_bytes(capture.size_bytes)})",
        f"events   {_describe_size(trace, num_events)}",
        f"time     {_describe_time(trace)}",
        f"lost     {_describe_losses(recording)}",
        f"finding  {_describe_top_finding(trace, num_events)}",
        f"next     {program()} report {capture.path}",
    )


def _describe_size(trace: Trace, num_events: int) -> str:
    from kprof.analysis.wording import counted

    numbers = [len(info.launches) for info in trace.manifest.ranks]
    least, most = min(numbers, default=0), max(numbers, default=0)
    launches = counted(most, "launch", "launches")
    if least < most:
        launches = f"{least:,} to {launches}"
    return f"{num_events:,} of {counted(len(trace.ranks), 'rank', 'ranks')} in {launches} each"


def _describe_time(trace: Trace) -> str:
    first_ns, last_ns = trace.window_ns()
    span = format_ns(last_ns - first_ns)
    if trace.alignment is not None:
        bound = format_ns(trace.alignment.widest_bound_ns)
        return f"{span} on one clock, +-{bound} between ranks ({trace.alignment.method})"
    if len(trace.manifest.ranks) == 1:
        return f"{span} on the clock of its only rank"
    return f"ranks are not on one clock: {trace.manifest.alignment_note}"


def _describe_losses(recording: Recording) -> str:
    from kprof.analysis.wording import counted
    from kprof.capture.losses import enough_arena

    manifest = recording.capture.manifest
    counts = [info.counts for info in manifest.ranks]
    dropped = sum(count.dropped for count in counts)
    parts = [
        f"{dropped:,} dropped",
        f"{sum(count.open for count in counts):,} open",
        f"{sum(count.clamped + count.saturated for count in counts):,} clamped",
        f"{counted(len(manifest.missing_ranks), 'rank', 'ranks')} missing",
    ]
    if left_out := sum(count.left_out_calls for count in counts):
        parts.append(f"{counted(left_out, 'call', 'calls')} left out whole")
    cut_short = sum(bool(info.cut_short) for info in manifest.ranks)
    if cut_short:
        parts.append(f"{counted(cut_short, 'rank', 'ranks')} cut short")
    parts += filter(None, [enough_arena(manifest)])
    parts += manifest.messages[:1]
    if len(manifest.messages) > 1:
        parts.append(f"{counted(len(manifest.messages) - 1, 'more loss', 'more losses')} above")
    return ", ".join(parts)


def _describe_top_finding(trace: Trace, num_events: int) -> str:
    if num_events > MAX_EVENTS_AFTER_RECORDING:
        return "skipped for large captures; run kprof report"
    from kprof.analysis import Summary, find

    found = find(Summary.of(trace))
    grave = [doubt.sentence for doubt in found.banners][:1]
    return "; ".join([found.headline, *grave])
