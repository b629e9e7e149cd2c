"""The trace inside the report page: a click on a finding opens it in the Perfetto UI."""

from __future__ import annotations

import base64
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kprof.export import write
from kprof.export.links import ONLINE_UI
from kprof.report.in_trace import finding_lines
from kprof.report.model import Report
from kprof.report.opening import link_to, place_of
from kprof.trace import Trace
from kprof.trace.limits import MAX_EVENTS_IN_PAGE, MAX_SLICES_IN_PAGE


@dataclass(frozen=True)
class EmbeddedTrace:
    """A gzipped pftrace in base64, and for each finding id the part of the UI's address that opens
    it."""

    title: str
    base64: str
    links: dict[str, str]
    ui: str = ONLINE_UI


def embed(trace: Trace, report: Report, *, ui: str = ONLINE_UI) -> EmbeddedTrace | None:
    """Export `trace` for the page of its report. None if it has nothing to show, or too much."""
    shown = [finding for finding in report.found.shown if finding.where_ns is not None]
    if not shown or report.num_events > MAX_EVENTS_IN_PAGE:
        return None
    lines = finding_lines(report.findings, [info.rank for info in trace.ranks])
    with tempfile.TemporaryDirectory(prefix="kprof-report-") as folder:
        file = Path(folder) / "trace.pftrace.gz"
        summary = write(trace, file, max_slices=MAX_SLICES_IN_PAGE, lines=lines)
        data = base64.b64encode(file.read_bytes()).decode()
    links = {
        finding.id: link_to(trace, place_of(finding), summary).query().lstrip("&")
        for finding in shown
    }
    return EmbeddedTrace(" ".join(report.manifest.command) or "kprof", data, links, ui)
