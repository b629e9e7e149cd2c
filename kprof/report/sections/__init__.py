"""The sections below the first screen: details, tables and figures by subject."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kprof.analysis import DoubtKind
from kprof.report.blocks import Block, Depth, Paragraph, Section, Tone
from kprof.report.model import Report
from kprof.report.sections.clocks import clocks
from kprof.report.sections.details import ABOUT, details
from kprof.report.sections.kernels import kernels, lifetimes
from kprof.report.sections.parts import Figures
from kprof.report.sections.places import blocks, launches, ranks, regions
from kprof.report.sections.waiting import path, waits


def sections(report: Report, figures: Figures, *, has_trace: bool) -> list[Block]:
    """The sections that this report has something to say in."""
    found: list[Block] = [
        Section("details", "Findings in detail", tuple(details(report, has_trace)), ABOUT)
    ]
    for name, title, about, build in _SECTIONS:
        blocks = tuple(build(report, figures))
        if blocks and not report.are_times_known and name != "clocks":
            why = [d for d in report.found.doubts if d.kind is DoubtKind.SHARED_CORES]
            said = (Paragraph(f"{d.sentence}.", tone=Tone.REFUSED, depth=Depth.PAGE) for d in why)
            blocks = (*said, *blocks)
        if blocks:
            found.append(Section(name, title, blocks, about))
    return [section for section in found if isinstance(section, Section) and section.blocks]


_SECTIONS: Final[tuple[tuple[str, str, str, Callable[[Report, Figures], list[Block]]], ...]] = (
    ("kernels", "Kernels", "which of them make a call long, and what they take", kernels),
    ("path", "Critical path", "what determines the length of a call", path),
    ("waits", "Waits", "who waits for whom, and for how long", waits),
    ("blocks", "Blocks", "spans of single blocks, work and waits of all", blocks),
    ("by-rank", "Ranks", "work, waits and efficiency by rank", ranks),
    ("lifetimes", "Warps of kernels", "waves, tails and the slowest block by kernel", lifetimes),
    ("launch-times", "Launches", "how long each took", launches),
    ("rates", "Regions and rates", "times, GB/s and FLOP/s by region", regions),
    ("clocks", "Clocks and losses", "error bounds, and what was not recorded", clocks),
)
