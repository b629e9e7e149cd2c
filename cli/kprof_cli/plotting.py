"""`kprof plot`: one picture of a capture, as a file or in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from typer import Argument, BadParameter, Option

from kprof.trace.selection import SelectionText
from kprof_cli.options import command
from kprof_cli.output import note, progress_bar, show
from kprof_cli.reading import open_summary


@command(
    what=Argument(
        help="ribbon: for whom ranks wait, over time; timeline: what they do, over time; waits: "
        "who waits for whom; regions: time by region; imbalance: work of every block."
    ),
    output=Option(
        "-o", "--output", help="An .svg or .png file. Default, ribbon only: the terminal."
    ),
)
def plot(
    run: Path,
    what: Literal["ribbon", "timeline", "waits", "regions", "imbalance"],
    selection: SelectionText,
    output: Path | None = None,
    force: bool = False,
) -> None:
    """Draw one picture of a capture: SVG, PNG, or the wait ribbon in the terminal."""
    from kprof import report as reports

    if output is not None:
        reports.check_picture(output, force=force)
    elif what != "ribbon":
        raise BadParameter(
            f"only ribbon is drawn in a terminal; add -o {what}.svg or -o {what}.png",
            param_hint="WHAT",
        )
    summary = open_summary(run, selection, None)
    with progress_bar() as progress:
        built = reports.build_from(summary, progress=progress)
    if output is None:
        show(reports.render_ribbon(built))
        return
    note(f"wrote {reports.write_picture(built, what, output, force=force)}")
