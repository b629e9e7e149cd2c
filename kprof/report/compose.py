"""The report as blocks: the first screen, which answers, then a section for each subject."""

from __future__ import annotations

from typing import Final

from kprof.analysis import Doubt, Finding, Limit
from kprof.analysis.findings.found import Ingredient, Rest
from kprof.analysis.findings.limits import by_design
from kprof.analysis.findings.words import lowered
from kprof.analysis.wording import counted, duration, members, percent
from kprof.report.blocks import (
    Bar,
    Block,
    Depth,
    Header,
    Headline,
    Paragraph,
    Point,
    Points,
    Section,
    Tone,
    capitalised,
)
from kprof.report.changes import Change
from kprof.report.figures import all_figures
from kprof.report.figures.base import Figure
from kprof.report.figures.small import picture
from kprof.report.model import MOST_ON_FIRST_SCREEN, MOST_TRACKS, Report
from kprof.report.sections import sections
from kprof.report.sections.parts import figure_section
from kprof.report.sections.places import NOT_OF_KERNELS, about_timeline

# With fewer findings than this, the design and the parts of a call follow them.
_FEWEST_POINTS: Final = 3
# From this share on findings explain so little that the parts of a call follow them, too.
_IS_MOST: Final = 0.5
_NAMES: Final = {
    "launches": "all launches",
    "critical-path": "the critical path",
    "gantt": "blocks up close",
    "blocks-work": "work of every block",
    "ranks": "work of every rank",
    "blame": "who waits for whom",
    "wait-distribution": "how long waits last",
}


def compose(
    report: Report, *, has_figures: bool = True, has_trace: bool = False
) -> tuple[Block, ...]:
    """All blocks of a report, in order.

    `has_figures` is False for outputs that cannot draw, `has_trace` True for a page that holds the
    trace.
    """
    figures = {figure.id: figure for figure in all_figures(report)} if has_figures else {}
    found = report.found
    return (
        Header(" ".join(report.manifest.command), report.facts),
        *(_banner(doubt) for doubt in found.banners),
        Section("findings", "", tuple(_answer(report, figures)), is_open=True),
        *_open_waits(report, figures),
        *_time_of_blocks(report),
        *(_ribbon(report, figures) or _timeline(report, figures)),
        *sections(report, figures, has_trace=has_trace),
    )


def _banner(doubt: Doubt) -> Paragraph:
    text = f"{capitalised(doubt.remedy)}."
    return Paragraph(text, f"{doubt.sentence}.", Tone.GRAVE, Depth.SUMMARY)


def _answer(report: Report, figures: dict[str, Figure]) -> list[Block]:
    """The headline, what to do, and what pays."""
    subject, points = report.found.subject, _points(report, figures)
    parts = _ingredients(report, _FEWEST_POINTS - len(points))
    points += parts
    is_point = {Finding: True, Limit: report.found.design is not None, Rest: bool(parts)}
    blocks: list[Block] = [Headline(f"{report.verdict}.")]
    if report.advice and not is_point.get(type(subject)):
        blocks.append(Paragraph(f"{report.advice}.", "What to do:", depth=Depth.SUMMARY))
    if report.found.about:
        blocks.append(Paragraph(f"{report.found.about}.", tone=Tone.FINE))
    if points:
        at_most = MOST_ON_FIRST_SCREEN + (report.found.design is not None)
        blocks.append(Points(tuple(points), at_most))
    rest = report.found.rest
    said = [rest.sentence] if rest is not subject else []
    if report.grown and report.is_even:
        said = [f"Within this recording, {lowered(rest.sentence)}"]
    if report.grown == ():
        more = "else " if report.findings else ""
        said.append(f"Nothing {more}takes longer than in the earlier recording")
    if said := [text for text in (*said, rest.below) if text]:
        blocks.append(Paragraph(f"{'. '.join(said)}.", tone=Tone.FINE))
    return blocks


def _points(report: Report, figures: dict[str, Figure]) -> list[Point]:
    """The design in the headline, findings, and where these are few, the design's other limits."""
    found = report.found
    points = [_of_design(report, found.design, figures)] if found.design else []
    points += [
        _of_finding(report, number, finding, figures)
        for number, finding in enumerate(report.findings, start=1)
    ]
    points += [_of_change(change) for change in report.grown or ()]
    limits = [limit for limit in found.rest.limits if limit is not found.subject]
    return points + [_of_limit(limit) for limit in limits[: max(0, _FEWEST_POINTS - len(points))]]


def _ingredients(report: Report, at_most: int) -> list[Point]:
    """What a typical call is made of, where findings explain little."""
    rest = report.found.rest
    if report.findings and (rest.unexplained or 0.0) < _IS_MOST:
        return []
    return [_of_ingredient(part) for part in rest.ingredients[: max(0, at_most)]]


def _of_finding(report: Report, number: int, finding: Finding, figures: dict[str, Figure]) -> Point:
    kind = finding.kind
    telling = (*(kind.figures_of_waits if _is_wait(report, finding) else ()), *kind.figures)
    figure = next((name for name in telling if name in figures), None)
    return Point(
        gain=f"−{percent(finding.share)}" if finding.is_timed else "",  # noqa: RUF001
        fact=finding.fact,
        advice=finding.advice,
        number=number,
        where=_where(finding),
        place=report.place_of(finding.region),
        details=finding.details,
        command=report.command_for(finding),
        id=finding.id,
        detail=f"detail-{number}",
        figure=(figure, _NAMES[figure]) if figure else None,
        picture=picture(report, finding) if figures else None,
        is_headline=finding is report.found.subject,
    )


def _of_change(change: Change) -> Point:
    """What takes longer than in an earlier recording."""
    details = (change.detail,) if change.detail else ()
    return Point(
        gain=f"−{percent(change.finding.share)}",  # noqa: RUF001
        fact=change.sentence,
        advice="look at what was changed there since the earlier recording",
        where=change.detail,
        details=details,
    )


def _is_wait(report: Report, finding: Finding) -> bool:
    regions = report.tables["regions"]
    waits = regions[regions["category"].isin(["wait", "sync"])]["region"]
    return finding.region in set(waits)


def _of_design(report: Report, design: Limit, figures: dict[str, Figure]) -> Point:
    return Point(
        gain=f"≤ {percent(design.share)}",
        fact=by_design(design.fact),
        advice=design.advice,
        where=f"saves up to {duration(design.gain_ns)}",
        command=report.command_for(design),
        id=design.id,
        picture=picture(report, design) if figures else None,
        is_headline=isinstance(report.found.subject, Limit),
    )


def _of_limit(limit: Limit) -> Point:
    return Point(
        gain=f"≤ {percent(limit.share)}",
        fact=by_design(limit.fact),
        advice=limit.advice,
        depth=Depth.PAGE,
    )


def _of_ingredient(part: Ingredient) -> Point:
    return Point(
        gain=percent(part.share),
        fact=f"of a typical call is {part.region}" + (f", which {part.rate}" if part.rate else ""),
        advice=part.advice,
        detail="path",
        depth=Depth.PAGE,
    )


def _where(finding: Finding) -> str:
    """How much, and in which calls; the picture has the tracks."""
    parts = []
    if finding.is_timed:
        calls = counted(len(finding.gains_ns), "call", "calls")
        parts.append(f"saves {duration(finding.gain_ns)} in {calls}")
    if 0 < len(finding.costly_calls) < len(finding.gains_ns):
        parts.append(members("call", finding.costly_calls, 3))
    return " · ".join(parts)


def _open_waits(report: Report, figures: dict[str, Figure]) -> list[Block]:
    number = len(report.tables["open_waits"])
    cut = "" if number <= MOST_TRACKS else f" {MOST_TRACKS} of {number:,}: --json has all."
    own = "" if report.manifest.is_on_one_clock else " Every rank is on its own clock."
    about = f"Hatched: no end was recorded.{own}{cut}"
    return figure_section(figures, "open-waits", "hang", "Waits that never ended", about)


def _time_of_blocks(report: Report) -> list[Block]:
    """Where the time of all blocks goes, as a bar."""
    if not report.parts or not report.are_times_known:
        return []
    seen: dict[str, int] = {}
    parts = []
    for part in report.parts:
        number = seen[part.kind] = seen.get(part.kind, -1) + 1
        # Parts of one kind differ: the first has the full colour.
        tint = ("", " second", " third")[min(number, 2)]
        parts.append((part.name, part.share, f"{part.kind}{tint}"))
    about = f"Without {members('call', report.warm_up)}, a warm-up." if report.warm_up else ""
    bar = Bar(tuple(parts))
    return [Section("efficiency", "Where the blocks' time goes", (bar,), about, is_open=True)]


def _ribbon(report: Report, figures: dict[str, Figure]) -> list[Block]:
    own = "" if report.manifest.is_on_one_clock else " Every rank is on its own clock."
    line = " The line is the critical path." if report.rows("critical_path") else ""
    about = (
        "Colour: the rank that most blocks of a row wait for; the deeper, the more of them. Look "
        f"for the row that stays grey where others wear its colour.{line}{own}"
    )
    if not report.are_times_known:
        about = NOT_OF_KERNELS
    return figure_section(figures, "ribbon", "over-time", "Who waits for whom, over time", about)


def _timeline(report: Report, figures: dict[str, Figure]) -> list[Block]:
    title = "What the blocks of every rank do"
    return figure_section(figures, "timeline", "over-time", title, about_timeline(report))
