"""The small picture beside a finding: the two tracks of the trace that show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kprof.analysis import Finding, Limit
from kprof.analysis.findings.places import LAUNCHES
from kprof.analysis.wording import counted, duration
from kprof.report.figures.base import Figure, label
from kprof.report.figures.over_time import draw_span
from kprof.report.figures.svg import Axis, Drawing, TimeAxis
from kprof.report.figures.up_close import guilty
from kprof.report.in_trace import window_ns

if TYPE_CHECKING:
    from kprof.report.model import Report

_WIDTH: Final = 300.0
_LEFT: Final = 98.0
_LANE: Final = 17.0


def picture(report: Report, finding: Finding | Limit) -> Figure | None:
    """Calls where a finding is one of calls, counts where only those are known, else two tracks."""
    if isinstance(finding, Limit):
        return _tracks(report, finding)
    if not finding.is_timed:
        return _counts(finding)
    if finding.kind.is_of_calls:
        return _calls(report, finding)
    return _tracks(report, finding)


def _tracks(report: Report, finding: Finding | Limit) -> Figure | None:
    spans = report.close_ups.get(finding.id)
    if spans is None or spans.empty:
        return None
    drawing = Drawing(_WIDTH, _LANE * len(finding.tracks) + 20)
    axis = TimeAxis(*window_ns(finding), _LEFT, _WIDTH)
    names = []
    for i, (rank, block) in enumerate(finding.tracks):
        names.append(f"rank {rank}" if block == LAUNCHES else f"rank {rank} block {block}")
        drawing.text(_LEFT - 6, (i + 1) * _LANE - 5, names[-1], "end", "fine")
        drawing.rect(_LEFT, i * _LANE, _WIDTH - _LEFT, _LANE - 3, "idle")
        rows = spans[(spans["rank"] == rank) & (spans["block"] == block)]
        its = guilty(finding, rows) if isinstance(finding, Finding) else [False] * len(rows)
        for row, is_guilty in zip(rows.to_dict("records"), its, strict=True):
            shown = row | {"category": row["category"] or "launch"}
            draw_span(drawing, axis, shown, i * _LANE, _LANE - 3, is_guilty=bool(is_guilty))
    y = _LANE * len(names) + 4
    drawing.line(_LEFT, y, _WIDTH, y, "ruler")
    drawing.line(_LEFT, y - 3, _LEFT, y + 3, "ruler")
    drawing.line(_WIDTH, y - 3, _WIDTH, y + 3, "ruler")
    length = duration(axis.high - axis.low)
    drawing.text((_LEFT + _WIDTH) / 2, y + 12, length, "middle", "fine")
    if any(block == LAUNCHES for _, block in finding.tracks):
        # Its colour is none of the categories of the page.
        drawing.rect(0, y + 3, 9, 9, "launch")
        drawing.text(13, y + 12, "kernel runs", kind="fine")
    return drawing.figure("", f"{' above '.join(names)}, over {length}")


def _calls(report: Report, finding: Finding) -> Figure | None:
    """A bar per call; those of the finding are full."""
    calls = report.rows("calls")
    if not calls:
        return None
    lengths = [call["length_ns"] for call in calls]
    its = set(finding.calls)
    is_its = [call["ordinal"] in its for call in calls]
    title = f"{counted(len(lengths), 'call', 'calls')}, the longest {duration(max(lengths))}"
    return _columns(lengths, is_its, title)


def _counts(finding: Finding) -> Figure | None:
    """A bar per rank, or block of one rank: events of the region."""
    rows = [row for row in finding.evidence if "events" in row]
    if not rows:
        return None
    kind = "rank" if "rank" in rows[0] else "block"
    rows = sorted(rows, key=lambda row: int(row[kind]))
    its = finding.ranks if kind == "rank" else finding.blocks
    is_its = [row[kind] in its for row in rows]
    title = f"events of {kind}s {rows[0][kind]} to {rows[-1][kind]}"
    return _columns([float(row["events"]) for row in rows], is_its, title)


def _columns(values: list[float], is_its: list[bool], title: str) -> Figure:
    drawing = Drawing(_WIDTH, 54)
    width = (_WIDTH - _LEFT) / len(values)
    rows = Axis(0.0, max(values), 38, 2)
    for i, value in enumerate(values):
        y = rows(value)
        kind = "work" if is_its[i] else "work t3"
        drawing.rect(_LEFT + (i + 0.1) * width, y, 0.8 * width, 38 - y, kind)
    drawing.text(_WIDTH, 51, label(title), "end", "fine")
    return drawing.figure("", title)
