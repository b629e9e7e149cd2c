"""What the page's first screen says: the headline, what pays, and where to look closer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kprof.analysis import FindingKind
from kprof.analysis.explain.sentences import by_design, limit_advice, limit_sentence
from kprof.analysis.wording import counted, duration, members, percent
from kprof.report.figures.small import picture
from kprof.report.model import MOST_ON_FIRST_SCREEN, MOST_TRACKS

if TYPE_CHECKING:
    from kprof.analysis import Finding
    from kprof.analysis.explain import Limit
    from kprof.analysis.findings.model import DesignCost, Ingredient, Shown
    from kprof.report.model import Report

# Where fewer findings than that are there, the design and the parts of a call stand below them.
_FEWEST_ROWS: Final = 3
# From here on findings explain so little that the parts of a call stand below them, too.
_IS_MOST: Final = 0.5
# By kind of finding the figures that show it, the most telling one first.
_FIGURES: Final = {
    FindingKind.LATE_START: ("launches", "critical-path"),
    FindingKind.IDLE_GAP: ("gantt", "critical-path"),
    FindingKind.SLOW: ("blocks-work", "ranks"),
    FindingKind.SLOW_TRANSFER: ("blame", "wait-distribution"),
    FindingKind.SLOW_EVENTS: ("wait-distribution", "gantt"),
    FindingKind.SLOW_CALL: ("launches", "gantt"),
    FindingKind.UNEVEN_WORK: ("blocks-work", "ranks"),
    FindingKind.UNEVEN_BLOCKS: ("blocks-work", "gantt"),
}
_NAMES: Final = {
    "launches": "all launches",
    "critical-path": "the critical path",
    "gantt": "blocks up close",
    "blocks-work": "work of every block",
    "ranks": "work of every rank",
    "blame": "who waits for whom",
    "wait-distribution": "how long waits last",
}


@dataclass(frozen=True)
class Row:
    """One thing that pays; `picture` is an SVG element or empty."""

    gain: str
    fact: str
    advice: str
    detail: str
    where: str = ""
    id: str = ""
    figure: str = ""
    figure_name: str = ""
    picture: Any = ""


def first_screen(report: Report, figures: set[str]) -> dict[str, Any]:
    """What the template of the first screen needs besides the report and its figures."""
    shown = report.findings[:MOST_ON_FIRST_SCREEN]
    rows = [_of_finding(report, i, finding, figures) for i, finding in enumerate(shown, start=1)]
    if report.found.design:
        rows.insert(0, _of_design(report, report.found.design))
    elif rows and report.verdict == report.findings[0].sentence:
        # The headline says it, right above.
        rows[0] = replace(rows[0], fact="")
    limits = [
        limit for limit in report.found.rest.limits if limit_sentence(limit) != report.verdict
    ]
    rows += [_of_limit(limit) for limit in limits[: max(0, _FEWEST_ROWS - len(rows))]]
    if not report.findings or (report.found.rest.unexplained or 0.0) >= _IS_MOST:
        parts = report.found.rest.ingredients
        rows += [_of_ingredient(part) for part in parts[: max(0, _FEWEST_ROWS - len(rows))]]
    return {
        "rows": rows,
        # Where no row says it: what to do about the design.
        "advice": "" if any(row.advice in report.advice for row in rows) else report.advice,
        "num_more": len(report.findings) - len(shown),
        "rest": _rest(report),
        "tints": _tints(report),
        "timeline_about": _about_timeline(report),
        "open_about": _about_open_waits(report),
    }


def _tints(report: Report) -> dict[str, str]:
    """How parts of one kind differ: the first has the full colour."""
    seen: dict[str, int] = {}
    tints = {}
    for part in report.parts:
        number = seen[part.kind] = seen.get(part.kind, -1) + 1
        tints[part.name] = ("", "second", "third")[min(number, 2)]
    return tints


def _rest(report: Report) -> str:
    """What the findings explain together, and what a typical call is made of."""
    rest = report.found.rest
    said = [rest.sentence] if rest.sentence != report.verdict else []
    return ". ".join([*said, *filter(None, [rest.below])])


def _of_finding(report: Report, number: int, finding: Finding, figures: set[str]) -> Row:
    telling: tuple[str, ...] = _FIGURES[finding.kind]
    if finding.kind is FindingKind.SLOW_EVENTS and not _is_wait(report, finding):
        telling = ("gantt",)
    figure = next((name for name in telling if name in figures), "")
    return Row(
        gain="" if finding.share is None else f"−{percent(finding.share)}",  # noqa: RUF001
        # The gain stands beside it.
        fact=finding.sentence.rpartition(": costs ")[0] or finding.sentence,
        advice=finding.advice,
        where=_where(finding),
        detail=f"detail-{number}",
        id=finding.id,
        figure=figure,
        figure_name=_NAMES.get(figure, ""),
        picture=_drawn(report, finding),
    )


def _drawn(report: Report, finding: Shown) -> Any:
    from markupsafe import Markup

    small = picture(report, finding)
    return Markup(small.svg) if small else ""


def _is_wait(report: Report, finding: Finding) -> bool:
    regions = report.tables["regions"]
    waits = regions[regions["category"].isin(["wait", "sync"])]["region"]
    return finding.cause.region in set(waits)


def _of_design(report: Report, design: DesignCost) -> Row:
    return Row(
        gain=f"≤ {percent(design.limit.share)}",
        fact="",
        advice=design.advice,
        where=f"saves up to {duration(design.limit.gain_ns)}",
        detail="details",
        id=design.id,
        picture=_drawn(report, design),
    )


def _of_limit(limit: Limit) -> Row:
    return Row(
        gain=f"≤ {percent(limit.share)}",
        fact=by_design(limit).rpartition(", which costs ")[0],
        advice=limit_advice(limit),
        detail="details",
    )


def _of_ingredient(part: Ingredient) -> Row:
    return Row(
        gain=percent(part.share),
        fact=f"of a typical call is {part.region}" + (f", which {part.rate}" if part.rate else ""),
        advice=part.advice,
        detail="path",
    )


def _where(finding: Finding) -> str:
    """How much, and in which calls; the picture has the tracks."""
    cause, parts = finding.cause, []
    if finding.gain_ns is not None:
        parts.append(
            f"saves {duration(finding.gain_ns)} in {counted(len(cause.gains_ns), 'call', 'calls')}"
        )
    if 0 < len(cause.costly_calls) < len(cause.gains_ns):
        parts.append(members("call", cause.costly_calls, 3))
    return " · ".join(parts)


def _about_open_waits(report: Report) -> str:
    """What the bars are, and which are left out."""
    number = len(report.tables["open_waits"])
    cut = "" if number <= MOST_TRACKS else f" {MOST_TRACKS} of {number:,}: --json has all."
    own = "" if report.manifest.is_on_one_clock else " Every rank is on a clock of its own."
    return f"Hatched: no end was recorded.{own}{cut}"


def _about_timeline(report: Report) -> str:
    """What the lanes are, and what they cannot say."""
    if not report.are_times_known:
        return "These are times of the operating system's scheduler, not of the kernels."
    about = f"Share of a rank's tracks per category over {report.focus.what}."
    if report.manifest.is_on_one_clock:
        return about
    return f"{about} The ranks' clocks are not aligned: compare within a lane only."
