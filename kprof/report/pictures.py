"""One figure of a report as an SVG file of its own, which every program draws."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kprof.capture.output import refuse_existing, replacing
from kprof.errors import SelectionError, UnknownFormatError
from kprof.report.figures import (
    PALETTE,
    RIBBON_COLORS,
    Figure,
    blame,
    block_heatmap,
    regions,
    ribbon,
    timeline,
)
from kprof.report.model import Report
from kprof.report.terminal_ribbon import TerminalRibbon

PICTURES: Final[dict[str, Callable[[Report], Figure | None]]] = {
    "ribbon": ribbon,
    "timeline": lambda report: timeline(report) or ribbon(report),
    "waits": blame,
    "regions": regions,
    "imbalance": lambda report: block_heatmap(report, "work_ns", "work"),
}
_VARIABLE: Final = re.compile(r"var\(--([\w-]+)\)")
# Paper is white.
_COLORS: Final = {name: light for name, (light, _) in (PALETTE | RIBBON_COLORS).items()} | {
    "card": "#ffffff",
    "ink": "#1c2330",
    "soft": "#5d6776",
    "line": "#dfe3e9",
    "on-deep": "#ffffff",
}


def check_picture(path: Path, *, force: bool = False) -> None:
    """Raise what `write_picture` would of the file's name, before the work: UnknownFormatError or
    OutputExistsError."""
    if path.suffix.lower() != ".svg":
        raise UnknownFormatError(f"{path}: pictures are .svg; give the file such a name")
    refuse_existing(path, force=force)


def write_picture(report: Report, kind: str, path: Path, *, force: bool = False) -> Path:
    """Write the figure `kind`, one of PICTURES.

    Raises SelectionError where the report has no data for it, UnknownFormatError,
    OutputExistsError unless `force`, and ExportError when the file cannot be written.
    """
    check_picture(path, force=force)
    figure = PICTURES[kind](report)
    if figure is None:
        raise _nothing(kind)
    with replacing(path, force=force) as file:
        file.write(standalone(figure).encode())
    return path


def render_ribbon(report: Report) -> TerminalRibbon:
    """The wait ribbon as a rich renderable. Raises SelectionError where no rank waits."""
    if report.ribbon is None or not report.ribbon.shares.any():
        raise _nothing("ribbon")
    return TerminalRibbon(report.ribbon)


def _nothing(kind: str) -> SelectionError:
    why = (
        "no rank waits in the events that are selected"
        if kind in ("ribbon", "waits")
        else ("the selected events have none of its data")
    )
    others = ", ".join(name for name in PICTURES if name != kind)
    return SelectionError(f"nothing to draw for {kind}: {why}; other pictures: {others}")


def standalone(figure: Figure) -> str:
    """The figure as an SVG file of its own, on white, with its colours written out."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("kprof.report"), undefined=StrictUndefined, autoescape=False
    )
    palette = PALETTE | RIBBON_COLORS
    style = environment.get_template("drawing.css.j2").render(palette=palette)
    style = _VARIABLE.sub(lambda found: _COLORS[found[1]], style)
    patterns = environment.get_template("patterns.svg.j2").render()
    _, _, width, height = re.findall(r"[\d.]+", figure.svg.partition('"')[2].partition('"')[0])
    head, _, body = figure.svg.partition(">")
    named = head.replace("<svg", f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}"', 1)
    ground = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return f'{named} height="{height}"><style>{style}</style>{patterns}{ground}{body}\n'
