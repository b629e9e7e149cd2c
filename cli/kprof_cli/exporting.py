"""The commands that show a trace: export writes one, view opens it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kprof.errors import ExportError
from kprof.selection import SelectionText
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
from kprof_cli.output import format_bytes, note, print_json, progress_bar
from kprof_cli.reading import open_trace

if TYPE_CHECKING:
    from kprof.export import ExportSummary
    from kprof.trace import Trace

_DEFAULT_PORT: Final = 9001
# A browser takes minutes and gigabytes for much more.
_DEFAULT_MAX_SLICES: Final = 2_000_000


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
            "'trace_rank*.json.gz'; may be repeated.",
            show_default=False,
        ),
    ] = None,
    is_json: JsonOption = False,
    force: ForceOption = False,
    ranks: RanksOption = None,
    blocks: BlocksOption = None,
    launches: LaunchesOption = None,
    regions: RegionsOption = None,
    time: TimeOption = None,
) -> None:
    """Write the merged trace of all ranks for Perfetto or Chrome."""
    trace = open_trace(run, SelectionText(ranks, blocks, launches, regions, time))
    summary = export_with_progress(
        trace,
        output,
        force=force,
        max_slices=max_slices or None,
        torch_traces=_matching_files(torch or ()),
    )
    for notice in summary.notices:
        note(notice)
    if is_json:
        print_json(asdict(summary))
    else:
        print(
            f"{summary.path}: {summary.num_slices:,} slices, {summary.num_flows:,} flows, "
            f"{summary.num_tracks:,} tracks, {format_bytes(summary.size_bytes)}"
        )
        print(f"next: kprof view {summary.path}")


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
    ranks: RanksOption = None,
    blocks: BlocksOption = None,
    launches: LaunchesOption = None,
    regions: RegionsOption = None,
    time: TimeOption = None,
) -> None:
    """Open the merged trace in the Perfetto UI."""
    from kprof import view as viewer

    with tempfile.TemporaryDirectory(prefix="kprof-view-") as scratch:
        file = run
        if not run.is_file():
            trace = open_trace(run, SelectionText(ranks, blocks, launches, regions, time))
            file = Path(scratch) / f"{run.resolve().stem}.pftrace"
            export_with_progress(trace, file, force=False)
        viewer.serve(
            file,
            port=port,
            is_local=is_local,
            should_open=should_open,
            timeout_s=timeout,
            deep_link=viewer.DeepLink(pinned=tuple(pin or ()), expanded=tuple(expand or ())),
            announce=note,
        )


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
    torch_traces: Sequence[Path] = (),
) -> ExportSummary:
    """Export with a bar on a terminal."""
    from kprof import export as exporter

    with progress_bar() as progress:
        return exporter.write(
            trace,
            output,
            force=force,
            max_slices=max_slices,
            torch_traces=torch_traces,
            progress=lambda share: progress(f"writing {output.name}", share),
        )
