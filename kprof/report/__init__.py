"""The report of a run: built once from a trace, shown in a terminal, as an HTML page or as JSON."""

from kprof.report.bars import MissedBar, check_bars, check_diff, check_expressions, metric_names
from kprof.report.difference import (
    DIFF_SCHEMA_VERSION,
    DiffReport,
    build_diff,
    diff_to_json,
    render_diff_markdown,
    render_diff_terminal,
    write_diff_html,
)
from kprof.report.machine import SCHEMA_VERSION, to_json
from kprof.report.markdown import render_markdown
from kprof.report.model import Report, build, build_from
from kprof.report.opening import EmbeddedTrace, embed
from kprof.report.page import check_suffix, write_html
from kprof.report.pictures import check_picture, render_ribbon, write_picture
from kprof.report.terminal import render_terminal

__all__ = [
    "DIFF_SCHEMA_VERSION",
    "SCHEMA_VERSION",
    "DiffReport",
    "EmbeddedTrace",
    "MissedBar",
    "Report",
    "build",
    "build_diff",
    "build_from",
    "check_bars",
    "check_diff",
    "check_expressions",
    "check_picture",
    "check_suffix",
    "diff_to_json",
    "embed",
    "metric_names",
    "render_diff_markdown",
    "render_diff_terminal",
    "render_markdown",
    "render_ribbon",
    "render_terminal",
    "to_json",
    "write_diff_html",
    "write_html",
    "write_picture",
]
