"""The commands that show a trace: export writes one, view opens it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kprof.capture.output import refuse_existing
from kprof.errors import ExportError, SelectionError
from kprof.trace.selection import SelectionText
from kprof_cli.options import (
    BlocksOption,
    ForceOption,
    JsonOption,
    LaunchesOption,
    RanksOption,
    RegionsOption,
    RunArgument,
    TimeOption,
)
from kprof_cli.output import format_bytes, note, print_json, progress_bar, say
from kprof_cli.reading import open_trace

if TYPE_CHECKING:
    from kprof.analysis import Finding
    from kprof.export import ExportSummary
    from kprof.export.links import DeepLink
    from kprof.trace import Trace

_DEFAULT_PORT: Final = 9001
# A browser takes minutes and gigabytes for much more.
_DEFAULT_MAX_SLICES: Final = 2_000_000
# Findings of this many take some 8 s on one core, less than writing the trace.
_MAX_EVENTS_FOR_FINDINGS: Final = 5_000_000

FindingsOption = Annotated[
    bool | None,
    typer.Option(
        "--findings/--no-findings",
        help="Draw the findings of `kprof report` as slices; left out of very large captures unless asked for.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(export)
    app.command()(view)


def export(
    run: RunArgument,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="A .pftrace or .json file, or one of these with .gz.",
            show_default=False,
        ),
    ],
    max_slices: Annotated[
        int,
        typer.Option(
            min=0, help="Merge short neighbours until this many slices are left; 0 keeps all."
        ),
    ] = _DEFAULT_MAX_SLICES,
    torch: Annotated[
        list[str] | None,
        typer.Option(
            help="Traces of the PyTorch profiler, one per rank: a file, or a pattern like "
            "'trace_rank*.json.gz'; may be repeated. Else those that the workload kept in the capture.",
            show_default=False,
        ),
    ] = None,
    is_without_torch: Annotated[
        bool, typer.Option("--no-torch", help="Leave the PyTorch profiler's traces out.")
    ] = False,
    has_findings: FindingsOption = None,
    is_json: JsonOption = False,
    force: ForceOption = False,
    ranks: RanksOption = None,
    blocks: BlocksOption = None,
    launches: LaunchesOption = None,
    regions: RegionsOption = None,
    time: TimeOption = None,
) -> None:
    """Write the merged trace of all ranks for Perfetto or Chrome."""
    refuse_existing(output, force=force)
    torch_traces = _matching_files(torch or ()) or _kept_torch_traces(run)
    trace = open_trace(run, SelectionText(ranks, blocks, launches, regions, time))
    summary = export_with_progress(
        trace,
        output,
        force=force,
        max_slices=max_slices or None,
        found=find_with_progress(trace) if _wants_findings(trace, has_findings) else (),
        torch_traces=() if is_without_torch else torch_traces,
    )
    for notice in summary.notices:
        note(notice)
    if is_json:
        print_json(asdict(summary))
    else:
        say(
            f"{summary.path}: {summary.num_slices:,} slices, {summary.num_flows:,} flows, "
            f"{summary.num_tracks:,} tracks, {format_bytes(summary.size_bytes)}"
        )
        say(f"next: kprof view {summary.path}")


def view(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A capture, or a trace that was exported.", show_default=False
        ),
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0 takes a free one.")
    ] = _DEFAULT_PORT,
    is_local: Annotated[
        bool,
        typer.Option("--local", help="Use the Perfetto UI of kprof[view], with no internet."),
    ] = False,
    should_open: Annotated[
        bool, typer.Option("--open/--no-open", help="Open a browser, or only print the address.")
    ] = True,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Stop after so many seconds.", show_default=False)
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            help="Pin tracks by name, like '^block 17$'; may be repeated.", show_default=False
        ),
    ] = None,
    expand: Annotated[
        list[str] | None,
        typer.Option(
            help="Expand tracks by name, like '^Rank 3 '; may be repeated.", show_default=False
        ),
    ] = None,
    finding: Annotated[
        str | None,
        typer.Option(
            help="Open on this finding of `kprof report`, by its id or its number.",
            show_default=False,
        ),
    ] = None,
    has_findings: FindingsOption = None,
    ranks: RanksOption = None,
    blocks: BlocksOption = None,
    launches: LaunchesOption = None,
    regions: RegionsOption = None,
    time: TimeOption = None,
) -> None:
    """Open the merged trace in the Perfetto UI."""
    from kprof.export import viewer

    link = viewer.DeepLink(pinned=tuple(pin or ()), expanded=tuple(expand or ()))
    with tempfile.TemporaryDirectory(prefix="kprof-view-") as scratch:
        file = run
        if not run.is_file():
            trace = open_trace(run, SelectionText(ranks, blocks, launches, regions, time))
            file = Path(scratch) / f"{run.resolve().stem}.pftrace"
            if finding is None:
                found = find_with_progress(trace) if _wants_findings(trace, has_findings) else ()
                export_with_progress(
                    trace, file, force=False, found=found, torch_traces=_kept_torch_traces(run)
                )
            else:
                link = _export_finding(trace, file, finding, link)
        elif finding is not None:
            raise SelectionError(
                f"--finding needs the capture, and {run} is a file that was exported; "
                "give the directory, such as run.kprof"
            )
        viewer.serve(
            file,
            port=port,
            is_local=is_local,
            should_open=should_open,
            timeout_s=timeout,
            deep_link=link,
            announce=note,
        )


def _export_finding(trace: Trace, file: Path, which: str, link: DeepLink) -> DeepLink:
    """Export what shows a finding, and the link that opens it there with what `link` wants besides."""
    from kprof.report import in_trace

    found = find_with_progress(trace)
    finding = in_trace.find(found, which)
    first_ns, last_ns = in_trace.window_ns(finding)
    if trace.num_events() > _DEFAULT_MAX_SLICES:
        # Every slice of the stretch in question, rather than merged ones of everything.
        origin_ns = trace.window_ns()[0]
        trace = trace.select(time_ns=(max(0, first_ns - origin_ns), last_ns - origin_ns))
    note(finding.sentence)
    summary = export_with_progress(trace, file, force=False, found=found)
    own = in_trace.deep_link(finding, summary)
    return replace(own, pinned=link.pinned, expanded=(*own.expanded, *link.expanded))


def _wants_findings(trace: Trace, has_findings: bool | None) -> bool:
    """As the user says; else where looking for them takes no longer than writing the trace."""
    if has_findings is not None:
        return has_findings
    if trace.num_events() <= _MAX_EVENTS_FOR_FINDINGS:
        return True
    note(
        f"findings are not drawn: looking for them in {trace.num_events():,} events takes a while; "
        "--findings draws them"
    )
    return False


def find_with_progress(trace: Trace) -> Sequence[Finding]:
    """The findings of a trace, with a bar on a terminal."""
    from kprof import analysis
    from kprof.analysis.summary import summarise

    with progress_bar() as progress:
        summarise(trace, progress)
        return analysis.findings(trace)


def _kept_torch_traces(run: Path) -> tuple[Path, ...]:
    """What the workload kept of the PyTorch profiler, beside its own events."""
    from kprof.capture.directory import Capture

    return Capture.open(run).torch_traces()


def _matching_files(patterns: Sequence[str]) -> tuple[Path, ...]:
    """The files that these paths and patterns name, each once; raises ExportError if one names none."""
    import glob

    found: dict[Path, None] = {}
    for pattern in patterns:
        # A name of its own wins: brackets in it would be taken for a pattern.
        names = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern))  # noqa: PTH207 - a pattern may be absolute, which Path.glob refuses
        if not names:
            raise ExportError(
                f"--torch {pattern!r} matches no file; give the files that export_chrome_trace wrote"
            )
        found |= dict.fromkeys(Path(name) for name in names)
    return tuple(found)


def export_with_progress(
    trace: Trace,
    output: Path,
    *,
    force: bool,
    max_slices: int | None = _DEFAULT_MAX_SLICES,
    found: Sequence[Finding] = (),
    torch_traces: Sequence[Path] = (),
) -> ExportSummary:
    """Export with a bar on a terminal; findings become slices."""
    from kprof import export as exporter
    from kprof.report.in_trace import finding_lines

    with progress_bar() as progress:
        return exporter.write(
            trace,
            output,
            force=force,
            max_slices=max_slices,
            lines=finding_lines(found, [info.rank for info in trace.ranks]),
            torch_traces=torch_traces,
            progress=lambda share: progress(f"writing {output.name}", share),
        )
