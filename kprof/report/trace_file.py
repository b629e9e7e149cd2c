"""Trace files with findings in them, for `kprof export`, `kprof view` and `kprof demo`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kprof import export
from kprof.export.model import By
from kprof.report.in_trace import finding_lines
from kprof.report.opening import link_to, opening, place_of
from kprof.trace.limits import MAX_SLICES

if TYPE_CHECKING:
    from kprof.analysis import Finding, Findings
    from kprof.analysis.findings.model import Shown
    from kprof.export import ExportSummary
    from kprof.export.links import DeepLink
    from kprof.trace import Trace


def write_trace(
    trace: Trace,
    output: Path,
    found: Sequence[Finding] = (),
    *,
    force: bool = False,
    max_slices: int | None = MAX_SLICES,
    torch_traces: Sequence[Path] = (),
    by: By = By.BLOCK,
    progress: Callable[[float], None] | None = None,
) -> ExportSummary:
    """Write a trace like kprof.export.write, with findings as slices on lines of their ranks."""
    return export.write(
        trace,
        output,
        force=force,
        max_slices=max_slices,
        lines=finding_lines(found, [info.rank for info in trace.ranks]),
        torch_traces=torch_traces,
        by=by,
        progress=progress,
    )


def write_opening(
    trace: Trace,
    output: Path,
    found: Findings,
    *,
    torch_traces: Sequence[Path] = (),
    by: By = By.BLOCK,
    progress: Callable[[float], None] | None = None,
) -> DeepLink:
    """Write a whole trace, and return a link to its first finding or busiest call."""
    summary = write_trace(
        trace, output, found.findings, torch_traces=torch_traces, by=by, progress=progress
    )
    return opening(trace, found.shown, summary, by)


def write_around(
    trace: Trace,
    output: Path,
    found: Sequence[Finding],
    shown: Shown,
    *,
    torch_traces: Sequence[Path] = (),
    by: By = By.BLOCK,
    progress: Callable[[float], None] | None = None,
) -> DeepLink:
    """Write the part of a trace that shows one finding, and return the link to it.

    For a large trace that is the time around the finding with every slice, instead of everything
    with merged slices. Raises SelectionError if the finding has no time in the trace.
    """
    place = place_of(shown)
    if trace.num_events() > MAX_SLICES:
        origin_ns = trace.origin_ns()
        window_ns = (max(0, place.first_ns - origin_ns), place.last_ns - origin_ns)
        trace = trace.select(time_ns=window_ns)
    summary = write_trace(trace, output, found, torch_traces=torch_traces, by=by, progress=progress)
    return link_to(trace, place, summary, by)
