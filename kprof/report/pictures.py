"""One figure of a report as a file: SVG that every program draws, or a PNG of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kprof.capture.output import refuse_existing, replacing
from kprof.errors import ExportError, SelectionError, UnknownFormatError
from kprof.report.figures.base import PALETTE, Figure
from kprof.report.figures.by_place import blame, block_heatmap, regions
from kprof.report.figures.over_time import timeline
from kprof.report.figures.ribbon import RIBBON_COLORS, ribbon
from kprof.report.model import Report
from kprof.report.terminal_ribbon import TerminalRibbon

PICTURES: Final[dict[str, Callable[[Report], Figure | None]]] = {
    "ribbon": ribbon,
    "timeline": lambda report: timeline(report) or ribbon(report),
    "waits": blame,
    "regions": regions,
    "imbalance": lambda report: block_heatmap(report, "work_ns", "work"),
}
_SUFFIXES: Final = (".svg", ".png")
# What draws a PNG.
_BROWSERS: Final = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
)
_BROWSER_TIMEOUT_S: Final = 120
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
    """Raise what `write_picture` would of the file's name, before the work: UnknownFormatError,
    OutputExistsError, or ExportError where nothing can draw a PNG."""
    if path.suffix.lower() not in _SUFFIXES:
        raise UnknownFormatError(f"{path}: pictures are .svg or .png; give the file such a name")
    refuse_existing(path, force=force)
    if path.suffix.lower() == ".png":
        _browser()


def write_picture(report: Report, kind: str, path: Path, *, force: bool = False) -> Path:
    """Write the figure `kind`, one of PICTURES. A PNG has two pixels for each of the figure's.

    Raises SelectionError where the report has no data for it, UnknownFormatError,
    OutputExistsError unless `force`, and ExportError when the file cannot be written.
    """
    check_picture(path, force=force)
    figure = PICTURES[kind](report)
    if figure is None:
        raise _nothing(kind)
    svg = standalone(figure)
    data = _png(svg) if path.suffix.lower() == ".png" else svg.encode()
    with replacing(path, force=force) as file:
        file.write(data)
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


def _browser() -> str:
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if found is None:
        raise ExportError(
            "a PNG is drawn by chromium or google-chrome, and neither is on PATH; install one, or "
            "name the file .svg, which needs none"
        )
    return found


def _png(svg: str) -> bytes:
    """The picture as a browser without a window draws it."""
    with tempfile.TemporaryDirectory(prefix="kprof-plot-") as folder:
        page, picture = Path(folder) / "picture.svg", Path(folder) / "picture.png"
        page.write_text(svg, encoding="utf-8")
        width, height = re.findall(r' (?:width|height)="([\d.]+)"', svg)[:2]
        command = [
            _browser(),
            "--headless",
            "--disable-gpu",
            "--hide-scrollbars",
            "--force-device-scale-factor=2",
            f"--user-data-dir={folder}/profile",
            f"--window-size={width},{-(-float(height) // 1):.0f}",
            f"--screenshot={picture}",
            page.as_uri(),
        ]
        # Chromium's own sandbox refuses root, as in most containers; the page is our own drawing.
        if os.geteuid() == 0:
            command.insert(1, "--no-sandbox")
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_BROWSER_TIMEOUT_S)
            return picture.read_bytes()
        except (OSError, subprocess.SubprocessError) as error:
            raise ExportError(
                f"{command[0]} did not draw the picture ({type(error).__name__}); name the file "
                ".svg instead"
            ) from error
