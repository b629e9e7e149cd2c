"""`kprof diff`: did a change make it faster?"""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option

from kprof.capture.output import refuse_existing
from kprof.trace.selection import SelectionText
from kprof_cli.options import PAGE_OUTPUT, command
from kprof_cli.output import note, print_json_text, say, show, stop_for
from kprof_cli.reading import open_trace


@command(
    base=Argument(metavar="BASE", help="The capture before."),
    candidate=Argument(metavar="CAND", help="The capture after."),
    more_base=Option("--base", help="Another recording of BASE. Can be repeated."),
    more_candidates=Option("--cand", help="Another recording of CAND. Can be repeated."),
    output=PAGE_OUTPUT,
    fail_on=Option(help="Exit with 3 if this holds: 'slower', or 'slower>5%' to allow 5 %."),
    has_all_rows=Option("--all", help="Also print the rows that did not change."),
)
def diff(
    base: Path,
    candidate: Path,
    selection: SelectionText,
    more_base: list[Path] | None = None,
    more_candidates: list[Path] | None = None,
    output: Path | None = None,
    is_json: bool = False,
    is_github: bool = False,
    fail_on: list[str] | None = None,
    has_all_rows: bool = False,
    force: bool = False,
) -> None:
    """Show what became slower or faster between two captures, beyond noise."""
    from kprof import report as reports

    if output is not None:
        reports.check_suffix(output)
        refuse_existing(output, force=force)
    sides = (base, *(more_base or ())), (candidate, *(more_candidates or ()))
    built = reports.build_diff(*([open_trace(run, selection) for run in side] for side in sides))
    missed = reports.check_diff(built, fail_on or [])
    if output is not None:
        reports.write_diff_html(built, output, force=force)
        note(f"wrote {output}; open it in a browser, offline too")
    if is_json:
        print_json_text(reports.diff_to_json(built).decode())
    elif is_github:
        say(reports.render_diff_markdown(built), keep="\n")
    elif output is None:
        show(reports.render_diff_terminal(built, all_rows=has_all_rows))
    stop_for(missed)
