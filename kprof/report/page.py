"""Blocks as one HTML file that needs no network: one screen that answers, the rest folded.

Figures are drawn here (SVG), so that sentences, tables and pictures are there without scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from markupsafe import Markup

from kprof.analysis.wording import percent
from kprof.capture.output import refuse_existing, replacing
from kprof.capture.printable import printable, printable_json
from kprof.errors import UnknownFormatError
from kprof.report.blocks import Block, Depth, Section
from kprof.report.compose import compose
from kprof.report.figures.base import PALETTE
from kprof.report.figures.ribbon import RIBBON_COLORS
from kprof.report.model import Report
from kprof.report.opening import EmbeddedTrace

if TYPE_CHECKING:
    from jinja2 import Environment

_TABLE_ROWS: Final = 64
_SUFFIXES: Final = (".html", ".htm")
# What would end a script element or start a comment in it.
_UNSAFE_IN_SCRIPT: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def check_suffix(path: Path) -> None:
    """Refuse a name that other programs would not open as a page. Raises UnknownFormatError."""
    if path.suffix.lower() not in _SUFFIXES:
        raise UnknownFormatError(
            f"{path}: the report is a web page; give it a name that ends in .html. To get a PDF, "
            "print the page from a browser"
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


def to_html(report: Report, trace: EmbeddedTrace | None = None) -> str:
    """The page of a report as text."""
    manifest = report.manifest
    blocks = compose(report, has_trace=trace is not None and bool(trace.links))
    about = f"kprof {manifest.kprof_version} · {manifest.created_utc} · "
    return page_of(blocks, "kprof report", " ".join(manifest.command), about, trace)


def page_of(
    blocks: Sequence[Block],
    tool: str,
    about: str = "",
    footer: str = "",
    trace: EmbeddedTrace | None = None,
) -> str:
    """A page of blocks. `about` is in its title, `footer` at its end."""
    links = {"ui": trace.ui, "title": trace.title, "links": trace.links} if trace else None
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            blocks=blocks,
            contents=[(b.name, b.id) for b in blocks if isinstance(b, Section) and not b.is_open],
            tool=tool,
            title=f"{tool}: {about}" if about else tool,
            footer=footer,
            depth=Depth.PAGE,
            most_rows=_TABLE_ROWS,
            trace=trace,
            trace_links=_script_json(links),
            palette=PALETTE | RIBBON_COLORS,
        )
    )


@cache
def _environment() -> Environment:
    """The templates, each compiled once."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("kprof.report"),
        # Everything is escaped unless it is marked as safe.
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    environment.filters["script_json"] = _script_json
    return environment


def _shown(value: Any) -> Any:
    """What a template prints of a value: control characters and marks that turn text round become
    visible.

    Markup is a part of the page that was made safe already.
    """
    is_name = isinstance(value, str) and not isinstance(value, Markup)
    return printable(value) if is_name else value


def _script_json(value: Any) -> Any:
    """JSON that cannot end the script element it stands in, whatever names it holds."""
    text = printable_json(msgspec.json.encode(value).decode())
    for character, escaped in _UNSAFE_IN_SCRIPT.items():
        text = text.replace(character, escaped)
    return Markup(text)
