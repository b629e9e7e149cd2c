"""The report as one HTML file that needs no network: one screen that answers, the rest folded.

Figures are drawn here (SVG), so that sentences, tables and pictures are there without scripts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kprof.analysis.explain.sentences import by_design, limit_advice
from kprof.analysis.hung import left_out
from kprof.analysis.wording import difference, duration, members, percent
from kprof.capture.output import refuse_existing, replacing
from kprof.capture.printable import printable, printable_json
from kprof.errors import UnknownFormatError
from kprof.report.figures import PALETTE, all_figures
from kprof.report.first_screen import first_screen
from kprof.report.machine import loss_rows, quality_rows
from kprof.report.rates import has_ceilings, rate_cell, rate_columns, rate_rows, without_bytes

if TYPE_CHECKING:
    from kprof.report.embedded import EmbeddedTrace
    from kprof.report.model import Report

_TABLE_ROWS: Final = 64
_SUFFIXES: Final = (".html", ".htm")
# The columns of the table of losses.
REGION_LOSSES: Final = ("dropped", "open", "saturated", "clamped", "unknown_region")
LOSSES: Final = (*REGION_LOSSES, "torn_chunks")
# What would end a script element or start a comment in it.
_UNSAFE_IN_SCRIPT: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def check_suffix(path: Path) -> None:
    """Refuse a name that other programs would not open as a page. Raises UnknownFormatError."""
    if path.suffix.lower() not in _SUFFIXES:
        raise UnknownFormatError(
            f"{path}: the report is a web page; give it a name that ends in .html, and print that "
            "to PDF from a browser"
        )


def write_html(
    report: Report, path: Path, *, force: bool = False, trace: EmbeddedTrace | None = None
) -> Path:
    """Write the page; with `trace` in it (see embed), every finding opens there.

    Raises OutputExistsError unless `force`, and ExportError when the file cannot be written.
    """
    refuse_existing(path, force=force)
    return write_page(to_html(report, trace), path, force=force)


def write_page(page: str, path: Path, *, force: bool) -> Path:
    """Write a page; raises OutputExistsError and ExportError, and leaves nothing half-written."""
    with replacing(path, force=force) as file:
        file.write(page.encode())
    return path


def render(template: str, **values: Any) -> str:
    """A template of this package with its values.

    Everything is escaped unless it is marked as safe.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("kprof.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "percent": percent, "difference": difference}
    named = {"members": members, "by_design": by_design, "limit_advice": limit_advice}
    return environment.get_template(template, globals=named).render(values)


def _shown(value: Any) -> Any:
    """What a template prints of a value: control characters and marks that turn text round become
    visible.

    Markup is a part of the page that was made safe already.
    """
    from markupsafe import Markup

    is_name = isinstance(value, str) and not isinstance(value, Markup)
    return printable(value) if is_name else value


def to_html(report: Report, trace: EmbeddedTrace | None = None) -> str:
    """The page as text."""
    from markupsafe import Markup

    figures = {figure.id: Markup(figure.svg) for figure in all_figures(report)}
    shared: dict[str, Any] = {"report": report, "figures": figures, "trace": trace}
    links = {"ui": trace.ui, "title": trace.title, "links": trace.links} if trace else None
    return render(
        "report.html.j2",
        **shared,
        **first_screen(report, set(figures)),
        sections=_sections(shared | _tables(report)),
        palette=PALETTE,
        trace_links=_script_json(links),
    )


@dataclass(frozen=True)
class _Section:
    """What is folded under a name."""

    id: str
    name: str
    about: str
    body: Any


_SECTIONS: Final = (
    ("details", "Findings in detail", "what each rests on, the rest, and doubts"),
    ("path", "Critical path", "what the length of a call is made of"),
    ("waits", "Waits", "who waits for whom, and for how long"),
    ("blocks", "Blocks", "spans of single blocks, work and wait of all"),
    ("ranks", "Ranks", "work, waits and efficiency by rank"),
    ("launches", "Launches", "how long each took"),
    ("regions", "Regions and rates", "times, GB/s and FLOP/s by region"),
    ("clocks", "Clocks and losses", "error bounds, and what was not recorded"),
)


def _sections(values: dict[str, Any]) -> list[_Section]:
    """What this report has something to say about."""
    from markupsafe import Markup

    found = []
    for name, title, about in _SECTIONS:
        body = render(f"sections/{name}.html.j2", **values, figure=partial(_box, values["figures"]))
        if "<table" in body or "<svg" in body or "<p" in body:
            found.append(_Section(name, title, about, Markup(body)))
    return found


def _box(figures: dict[str, Any], name: str, about: str) -> Any:
    """A figure with a sentence on it; nothing where the report has no data for it."""
    from markupsafe import Markup

    if name not in figures:
        return ""
    box = Markup('<div class="figure-box" id="{}"><p class="about">{}</p>{}</div>')
    return box.format(name, printable(about), figures[name])


def _tables(report: Report) -> dict[str, Any]:
    """The rows of the folded tables, and how many there are of those that are cut."""
    regions, rates = report.rows("regions"), rate_rows(report)
    alignment, losses = report.manifest.alignment, loss_rows(report)
    bounds = {entry.rank: entry.bound_ns for entry in alignment.ranks} if alignment else {}
    return {
        "left_out": left_out(report.tables["hung_waits"]),
        "rank_rows": _rank_rows(report),
        "cut": _what_is_cut,
        "region_rows": regions[:_TABLE_ROWS],
        "num_regions": len(regions),
        "percentile_error": max((row["percentile_error"] for row in regions), default=0.0),
        "rate_rows": rates[:_TABLE_ROWS],
        "num_rates": len(rates),
        "rate_columns": rate_columns(rates),
        "rate_cell": rate_cell,
        "without_bytes": without_bytes(report),
        "has_ceilings": has_ceilings(rates),
        "quality": _quality_rows(report, bounds),
        "lossy_regions": sorted(losses, key=_most_lost_first)[:_TABLE_ROWS],
        "num_lossy_regions": len(losses),
        "bounds": {rank: duration(bound_ns) for rank, bound_ns in bounds.items()},
        "what_if_rows": _what_if_rows(report),
        "losses": LOSSES,
        "region_losses": REGION_LOSSES,
    }


def _script_json(value: Any) -> Any:
    """JSON that cannot end the script element it stands in, whatever names it holds."""
    import msgspec
    from markupsafe import Markup

    text = printable_json(msgspec.json.encode(value).decode())
    for character, escaped in _UNSAFE_IN_SCRIPT.items():
        text = text.replace(character, escaped)
    return Markup(text)


def _what_is_cut(shown: int, number: int, what: str, which: str) -> str:
    """A sentence where a table does not show all there is."""
    if shown == number:
        return ""
    return f"{shown} of {number:,} {what}: {which}; kprof report --json has them all."


def _quality_rows(report: Report, bounds_ns: dict[int, float]) -> list[dict[str, Any]]:
    """Ranks that lost most, then those with the least certain clocks, if a page cannot hold all."""
    rows = sorted(quality_rows(report), key=lambda row: -bounds_ns.get(row["rank"], 0.0))
    kept = sorted(rows, key=_most_lost_first)[:_TABLE_ROWS]
    return sorted(kept, key=lambda row: int(row["rank"]))


def _most_lost_first(row: dict[str, Any]) -> int:
    """The key of a row that sorts those that lost most first."""
    return -sum(int(row.get(name, 0)) for name in LOSSES)


def _rank_rows(report: Report) -> list[dict[Any, Any]]:
    """The straggler sheet: own work and wait, the wait caused to the others, and what fixing the
    rank would gain."""
    efficiency = report.tables["rank_efficiency"].set_index("rank").to_dict("index")
    gains, shown = _gains(report), report.telling_ranks(_TABLE_ROWS)
    return [
        row
        | {name: efficiency[row["rank"]][name] for name in ("load_balance", "parallel_efficiency")}
        | {"gain": gains.get(row["rank"], "-")}
        for row in report.rows("stragglers")
        if row["rank"] in shown
    ]


def _gains(report: Report) -> dict[int, str]:
    """By rank: what a call would end earlier if only that rank were like the median rank."""
    gains = {}
    for row in report.rows("what_if"):
        if row["rank"] >= 0:
            gain_ns, share = max(0.0, row["gain_ns"]), max(0.0, row["gain_share"])
            gains[row["rank"]] = f"{duration(gain_ns)} ({percent(share)})"
    return gains


def _what_if_rows(report: Report) -> list[dict[Any, Any]]:
    """What would help, and the two scenarios of the whole call.

    Ranks whose repair gains nothing are left out.
    """
    return [row for row in report.rows("what_if") if row["gain_share"] >= 0.005 or row["rank"] < 0]
