"""`kprof import`: make a capture of events that another tool recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer
from typer import Argument, Option

from kprof.importers import format_names, format_of
from kprof.trace.selection import parse_duration_ns
from kprof_cli.aligning import FROM_FLOWS, align_run
from kprof_cli.options import CAPTURE_OUTPUT, command
from kprof_cli.output import note, print_rows, program, say

if TYPE_CHECKING:
    from kprof.importers.foreign import ImportSummary, ReadOptions

# What to do where a thing was taken for the wrong one, by the option of the format that helps.
_REMEDIES: Final = {
    "clock": ("tick_ns", "--tick-ns NS"),
    "block": ("is_rank_in_tid", "--rank-in-tid, if thread ids include the rank"),
    "names": ("names", "--names a,b,c"),
    "category": ("", "--regions FILE"),
}


@command(
    files=Argument(metavar="FILE...", help="One file, or one per rank, rank 0 first."),
    kind=Option(help="The format, where kprof does not see it: see docs/import.md."),
    output=CAPTURE_OUTPUT,
    tick_ns=Option(help="Length of a tick of the clock in ns, where the file does not say it."),
    names=Option(help="Names of the tags in buffers that have numbers, like a,b,c."),
    regions=Option(help="A regions.h that declares which names are waits and sends."),
    is_rank_in_tid=Option("--rank-in-tid", help="Thread ids include the rank."),
    bound=Option(help="All ranks share one clock, to within this time, like 100ns."),
    is_from_flows=FROM_FLOWS,
)
def import_events(
    files: list[Path],
    kind: str | None = None,
    output: Path = Path("run.kprof"),
    tick_ns: float | None = None,
    names: str | None = None,
    regions: Path | None = None,
    is_rank_in_tid: bool = False,
    bound: str | None = None,
    is_from_flows: bool = False,
    force: bool = False,
) -> None:
    """Make a capture from events that another tool recorded."""
    from kprof import importers
    from kprof.importers.foreign import ReadOptions
    from kprof.regions import RegionTable

    if is_from_flows and bound:
        raise typer.BadParameter("--bound states a clock and --from-flows finds one: give one")
    tags = tuple(names.split(",")) if names else None
    options = ReadOptions(tags, tick_ns, is_rank_in_tid or None)
    known = kind or importers.detect(files)
    _check(known, files, options)
    summary = importers.import_events(
        known,
        files,
        output,
        options,
        regions=None if regions is None else RegionTable.from_header(regions),
        bound_ns=None if bound is None else float(parse_duration_ns(bound, "--bound")),
        force=force,
    )
    print_import(summary, is_detected=kind is None)
    if is_from_flows:
        align_run(output, None, (), force=False)


def _check(kind: str, files: Sequence[Path], options: ReadOptions) -> None:
    """Usage errors that typer cannot see. Refuse options that would have no effect."""
    from kprof.importers.foreign import OPTIONS

    if kind not in format_names():
        raise typer.BadParameter(f"--kind {kind} is none of {', '.join(format_names())}")
    given = [name for name, value in asdict(options).items() if value is not None]
    for name in given:
        if name not in format_of(kind).uses:
            kinds = ", ".join(of for of in format_names() if name in format_of(of).uses)
            raise typer.BadParameter(f"{OPTIONS[name]} is for the formats {kinds}, not {kind}")
    if len(files) > 1 and not format_of(kind).takes_many:
        raise typer.BadParameter(f"format {kind} takes one file, not {len(files)}")
    if options.tick_ns is not None and not 0 < options.tick_ns < math.inf:
        raise typer.BadParameter(f"--tick-ns is {options.tick_ns}; give a number above 0")


def print_import(summary: ImportSummary, *, is_detected: bool) -> None:
    """One table of what was taken for what, and the lines that end every import."""
    from kprof.importers.foreign import Guess

    uses = format_of(summary.kind).uses
    rows = [("format", summary.kind, "--kind" if is_detected else "")]
    for what, source in summary.taken:
        option, remedy = _REMEDIES.get(what.split()[0], ("", ""))
        shown = f"{source} (a guess)" if isinstance(source, Guess) else source
        rows.append((what, shown, remedy if option in {"", *uses} else ""))
    if summary.num_lost:
        rows.append(("lost before", f"{summary.num_lost:,} events", ""))
    rows += [("left out", f"{what}: {number:,}", "") for what, number in summary.left_out.items()]
    if summary.num_ranks > 1:
        clocks = "aligned by --bound" if summary.is_aligned else "not comparable between ranks"
        rows.append(("clocks", clocks, "" if summary.is_aligned else "--bound, if they are one"))
    print_rows(["what", "taken from", "to correct it"], rows)
    for notice in summary.notices:
        note(notice)
    ranks = "1 rank" if summary.num_ranks == 1 else f"{summary.num_ranks} ranks"
    say(f"capture  {summary.path}: {summary.num_events:,} events of {ranks}")
    say(f"next     {program()} report {summary.path}")
