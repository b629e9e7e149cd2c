"""The report of a run: built once from a trace, shown in a terminal, as an HTML page or as JSON."""

from kprof.report.bars import MissedBar, check_bars, metric_names
from kprof.report.machine import SCHEMA_VERSION, to_json
from kprof.report.model import Report, build
from kprof.report.page import write_html
from kprof.report.terminal import render_terminal

__all__ = [
    "SCHEMA_VERSION",
    "MissedBar",
    "Report",
    "build",
    "check_bars",
    "metric_names",
    "render_terminal",
    "to_json",
    "write_html",
]
