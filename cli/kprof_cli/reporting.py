"""The commands that say what a recording shows: report, explain, and diff of two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Option

from kprof.capture.output import refuse_existing
from kprof.trace.selection import SelectionText
from kprof_cli.options import PAGE_OUTPUT, command
from kprof_cli.output import note, print_json, print_json_text, progress_bar, say, show, stop_for
from kprof_cli.reading import open_summary, open_trace, view_command

if TYPE_CHECKING:
    from kprof.analysis import Findings


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


@command()
def explain(run: Path, selection: SelectionText, is_json: bool = False) -> None:
    """Show what would make the run shorter, and by how much."""
    from kprof.analysis import Summary, find

    found = find(Summary.of(open_trace(run, selection)))
    if is_json:
        _print_json(found)
        return
    for doubt in found.doubts:
        note(doubt.sentence)
    for number, finding in enumerate(found.findings, 1):
        say(f"{number}. {finding.sentence}")
        for detail in (*finding.details, finding.advice):
            say(f"   {detail}")
    if found.rest.sentence:
        say(f"{found.rest.sentence}.")
    if found.rest.below:
        say(f"{found.rest.below}.")
    for limit in found.rest.limits:
        say(f"   {limit.by_design}")


def _print_json(found: Findings) -> None:
    from kprof.report.machine import doubt_row, finding_row, rest_row

    document = {
        "doubts": [doubt_row(doubt) for doubt in found.doubts],
        "findings": [finding_row(finding) for finding in found.findings],
        "rest": rest_row(found.rest),
        "calls": found.calls,
        "num_calls": found.num_calls,
        "total_ns": found.total_ns,
    }
    print_json(document)


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

    reports.check_expressions(fail_on or [], of_diff=True)
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
