"""What each finding rests on, the design, doubts, and what is not shown."""

from __future__ import annotations

from typing import Final

from kprof.report.blocks import Block, Depth, Heading, Paragraph, Tone, capitalised
from kprof.report.model import Report


def details(report: Report, has_trace: bool) -> list[Block]:
    """What each finding rests on, the design, doubts, and what is not shown."""
    blocks: list[Block] = []
    for number, finding in enumerate(report.findings, start=1):
        details = " ".join(f"{detail}." for detail in finding.details)
        blocks += [
            Heading(f"{number}. {finding.sentence}.", f"detail-{number}"),
            Paragraph(details, tone=Tone.FINE, depth=Depth.PAGE),
            Paragraph(f"{finding.advice}.", "What to do:", depth=Depth.PAGE),
            *_command(report.command_for(finding)),
        ]
    if report.findings:
        about = _ABOUT_GAINS if report.are_times_known else "These findings rest on event counts."
        text = f"{about} {_ABOUT_TRACE}" if has_trace else about
        blocks.append(Paragraph(text, tone=Tone.FINE, depth=Depth.PAGE))
    if report.found.design:
        blocks += _command(report.command_for(report.found.design))
    rest = report.found.rest
    differences = [capitalised(one.sentence) for one in rest.differences]
    for text in filter(None, (rest.sentence, rest.below, *differences)):
        blocks.append(Paragraph(f"{text}.", depth=Depth.PAGE))
    for limit in rest.limits:
        if limit is not report.found.subject:
            text = f"{limit.by_design}. What to do: {limit.advice}."
            blocks.append(Paragraph(text, tone=Tone.FINE))
    for doubt in report.found.doubts:
        if not doubt.is_grave:
            text = f"{capitalised(doubt.remedy)}."
            blocks.append(Paragraph(text, f"{doubt.sentence}.", Tone.NOTE))
    depth = Depth.SCREEN if report.are_times_known else Depth.PAGE
    for reason, names in report.reasons.items():
        text = f"{capitalised(reason)}."
        blocks.append(Paragraph(text, f"Not shown: {names}.", Tone.REFUSED, depth))
    return blocks


ABOUT: Final = "the evidence for each, other losses, and doubts"
_ABOUT_GAINS: Final = (
    "Each gain comes from a replay of the calls with one thing changed, and adds to the gains "
    "before it. A wait is listed under its cause."
)
_ABOUT_TRACE: Final = (
    "The trace is in this page. Show in Perfetto opens ui.perfetto.dev in a new tab and hands it "
    "the trace inside the browser: nothing is uploaded. Perfetto asks before it opens the trace."
)


def _command(command: str) -> list[Block]:
    return [Paragraph(command, tone=Tone.COMMAND, depth=Depth.PAGE)] if command else []
