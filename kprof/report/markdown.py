"""Blocks as Markdown: for the step summary of a GitHub workflow, or a comment.

Names come from captures, so every character with a meaning in Markdown or HTML is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from kprof.capture.printable import printable
from kprof.report.blocks import (
    Block,
    Depth,
    Header,
    Headline,
    Paragraph,
    Points,
    Table,
    Tone,
    flat,
)
from kprof.report.compose import compose
from kprof.report.model import Report
from kprof.report.terminal_ribbon import squares

_MAX_ROWS: Final = 12
# Characters that a backslash escapes.
_MARKUP: Final = re.compile(r"([\\`*_{}\[\]<>()#+\-.!|~&@$:])")


def render_markdown(report: Report) -> str:
    """The verdict, the doubts about it, the findings with their gains, and the wait ribbon."""
    text = markdown_of(compose(report, has_figures=False), "kprof")
    if report.ribbon is None or not report.ribbon.shares.any():
        return text
    return f"{text}\n```text\n{squares(report.ribbon)}\n```\n"


def markdown_of(blocks: Iterable[Block], tool: str) -> str:
    """What a comment shows of these blocks: the headline first, after the name of the `tool`."""
    shown = sorted(flat(blocks, Depth.SUMMARY), key=lambda block: not isinstance(block, Headline))
    lines = [line for block in shown for line in _lines(block, tool)]
    return "\n".join(lines) + "\n"


def _lines(block: Block, tool: str) -> list[str]:
    match block:
        case Headline():
            return [f"### {tool}: {_text(block.text)}", ""]
        case Header():
            return [_text(", ".join(block.facts)), ""]
        case Paragraph(tone=Tone.GRAVE):
            return [f"**{_text(block.lead)}** {_text(block.text)}", ""]
        case Paragraph():
            return [_text(f"{block.lead} {block.text}".strip()), ""]
        case Points():
            points = [
                (
                    str(each.number or ""),
                    each.gain,
                    each.fact,
                    " · ".join(filter(None, (each.where, each.place))),
                    each.advice,
                )
                for each in block.points
                if each.depth <= Depth.SUMMARY
            ]
            return _table(("#", "gain", "finding", "which", "what to do"), points)
        case Table():
            columns, rows = block.up_to(Depth.SUMMARY, len(block.rows))
            return _table([c.name for c in columns], [[cell.text for cell in row] for row in rows])
        case _:
            return []


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in (headers, ["---"] * len(headers))]
    for row in rows[:_MAX_ROWS]:
        lines.append(f"| {' | '.join(map(_text, row))} |")
    left_out = len(rows) - _MAX_ROWS
    return lines + (["", f"{left_out} more rows are left out."] if left_out > 0 else [])


def _text(text: str) -> str:
    """One line of text, with everything escaped that has a meaning in Markdown or HTML."""
    return _MARKUP.sub(r"\\\1", printable(" ".join(text.split())))
