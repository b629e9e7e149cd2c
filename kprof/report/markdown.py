"""The report and the comparison as Markdown: for the step summary of a GitHub workflow, or a
comment.

Names come from captures, so every character with a meaning in Markdown or HTML is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from kprof.analysis.comparison import CALL
from kprof.analysis.wording import duration, percent
from kprof.capture.printable import printable
from kprof.report.difference import DiffReport, shown_rows

if TYPE_CHECKING:
    from kprof.analysis import Finding
    from kprof.report.model import Report

_MAX_ROWS: Final = 12
# Characters that a backslash escapes.
_MARKUP: Final = re.compile(r"([\\`*_{}\[\]<>()#+\-.!|~&@$:])")


def render_markdown(report: Report) -> str:
    """The verdict, the doubts about it, and the findings with their gains."""
    lines = [f"### kprof: {_text(report.verdict)}", ""]
    lines += [f"**{_text(doubt.sentence)}**\n" for doubt in report.found.banners]
    lines += [f"What to do: {_text(report.advice)}", ""] if report.advice else []
    lines += [_text(report.size), ""]
    if report.findings:
        rows = [_finding(number, each) for number, each in enumerate(report.findings, start=1)]
        lines += _table(("#", "gain", "finding", "what to do"), rows)
    return "\n".join(lines) + "\n"


def render_diff_markdown(report: DiffReport) -> str:
    """The verdict and the changes, calls and launches first, then the largest."""
    changed = [
        row for row in shown_rows(report, all_rows=True) if row["verdict"] in ("slower", "faster")
    ]
    lines = [f"### kprof diff: {_text(report.verdict)}", ""]
    lines += [f"{_text(cause)}\n" for cause in report.causes]
    if changed:
        rows = [
            (
                row["verdict"],
                _text("all kernels" if row["level"] == CALL else row["kernel"] or "the kernel"),
                _text(f"{row['region']}, {row['measure']}"),
                *(row[name] for name in ("base", "candidate", "change", "share")),
            )
            for row in changed
        ]
        lines += _table(("", "kernel", "what", "base", "candidate", "change", ""), rows)
    return "\n".join(lines) + "\n"


def _finding(number: int, finding: Finding) -> tuple[str, ...]:
    gain = ""
    if finding.gain_ns is not None and finding.share is not None:
        gain = f"{duration(finding.gain_ns)} ({percent(finding.share)})"
    return str(number), gain, _text(finding.sentence), _text(finding.advice)


def _table(headers: Sequence[str], rows: Sequence[Iterable[str]]) -> list[str]:
    lines = [" | ".join(headers), " | ".join("---" for _ in headers)]
    lines += [" | ".join(row) for row in rows[:_MAX_ROWS]]
    left_out = len(rows) - _MAX_ROWS
    return [f"| {line} |" for line in lines] + (
        ["", f"{left_out} more rows are left out."] if left_out > 0 else []
    )


def _text(text: str) -> str:
    """One line of text, with everything escaped that has a meaning in Markdown or HTML."""
    return _MARKUP.sub(r"\\\1", printable(" ".join(text.split())))
