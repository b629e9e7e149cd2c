"""The commands that say what a recording shows: report, and diff of two."""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option

from kprof.capture.output import refuse_existing
from kprof.trace.selection import SelectionText
from kprof_cli.options import PAGE_OUTPUT, command
from kprof_cli.output import note, print_json_text, progress_bar, say, show, stop_for
from kprof_cli.reading import open_summary, open_trace, view_command


@command(
    output=PAGE_OUTPUT,
    has_trace=Option(
        "--trace/--no-trace",
        help="Embed the trace in the page, so that a click opens a finding in Perfetto.",
    ),
    fail_on=Option(help="Exit with 3 if this holds, like 'load_balance<0.8'. Can be repeated."),
    against=Option(
        metavar="EARLIER", help="Also name what takes longer than in this earlier capture."
    ),
)
def report(
    run: Path,
    selection: SelectionText,
    output: Path | None = None,
    has_trace: bool = True,
    is_json: bool = False,
    is_github: bool = False,
    fail_on: list[str] | None = None,
    against: Path | None = None,
    force: bool = False,
    dask: str | None = None,
) -> None:
    """Show where the time went: findings, efficiency, and who waited for whom."""
    from kprof import report as reports

    reports.check_expressions(fail_on or [])
    if output is not None:
        reports.check_suffix(output)
        refuse_existing(output, force=force)
    summary = open_summary(run, selection, dask)
    earlier = None if against is None else open_summary(against, selection, dask)
    with progress_bar() as progress:
        built = reports.build_from(
            summary,
            progress=progress,
            view_command=view_command(run, selection),
            earlier=earlier,
        )
    missed = reports.check_bars(built, fail_on or [])
    if output is not None:
        reports.write_html(
            built,
            output,
            force=force,
            trace=reports.embed(summary.trace, built) if has_trace else None,
        )
        note(f"wrote {output}; open it in a browser, offline too")
    if is_json:
        print_json_text(reports.to_json(built).decode())
    elif is_github:
        say(reports.render_markdown(built), keep="\n")
    elif output is None:
        show(reports.render_terminal(built))
    stop_for(missed)


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
