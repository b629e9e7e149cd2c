"""`kprof import`: make a capture of events that another tool recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer
from typer import Argument, Option

from kprof.importers import format_names
from kprof.trace.selection import parse_duration_ns
from kprof_cli.options import CAPTURE_OUTPUT, command
from kprof_cli.output import note, say

if TYPE_CHECKING:
    from kprof.importers.foreign import ImportSummary, ReadOptions

# A format is a module of kprof.importers.formats, which mypy cannot see.
Kind = Enum("Kind", {name: name for name in format_names()}, type=str)  # type: ignore[misc]
_OPTIONS: Final = {
    "names": "--names",
    "tick_ns": "--tick-ns",
    "is_rank_in_tid": "--rank-in-tid",
}


@command(
    files=Argument(
        metavar="FILE...", help="One file, or for classic buffers one per rank, rank 0 first."
    ),
    kind=Option(help="classic: int64 buffers; chrome: a Chrome trace; table: .csv or .parquet."),
    output=CAPTURE_OUTPUT,
    tick_ns=Option(help="Length of a tick in ns. Default: 10 for classic, 1000 for chrome."),
    names=Option(help="Names of the tags in classic buffers, like a,b,c."),
    regions=Option(help="A regions.h that declares which names are waits and sends."),
    is_rank_in_tid=Option("--rank-in-tid", help="Thread ids include the rank."),
    bound=Option(help="All ranks share one clock, to within this time, like 100ns."),
)
def import_events(
    files: list[Path],
    kind: Kind,
    output: Path = Path("run.kprof"),
    tick_ns: float | None = None,
    names: str | None = None,
    regions: Path | None = None,
    is_rank_in_tid: bool = False,
    bound: str | None = None,
    force: bool = False,
) -> None:
    """Make a capture from events that another tool recorded."""
    from kprof import importers
    from kprof.importers.foreign import ReadOptions
    from kprof.regions import RegionTable

    tags = tuple(names.split(",")) if names else None
    options = ReadOptions(tags, tick_ns, is_rank_in_tid or None)
    _check(kind.value, files, options)
    summary = importers.import_events(
        kind.value,
        files,
        output,
        options,
        regions=None if regions is None else RegionTable.from_header(regions),
        bound_ns=None if bound is None else float(parse_duration_ns(bound, "--bound")),
        force=force,
    )
    _print_summary(summary)


def _check(kind: str, files: Sequence[Path], options: ReadOptions) -> None:
    """Usage errors that typer cannot see. Refuse options that would have no effect."""
    from kprof.importers import format_of

    given = [name for name, value in asdict(options).items() if value is not None]
    for name in given:
        if name not in format_of(kind).uses:
            kinds = " and ".join(of for of in format_names() if name in format_of(of).uses)
            raise typer.BadParameter(f"{_OPTIONS[name]} is for --kind {kinds} only")
    if len(files) > 1 and not format_of(kind).takes_many:
        raise typer.BadParameter(f"--kind {kind} takes one file, not {len(files)}")
    if options.tick_ns is not None and not 0 < options.tick_ns < math.inf:
        raise typer.BadParameter(f"--tick-ns is {options.tick_ns}; give a number above 0")


def _print_summary(summary: ImportSummary) -> None:
    for notice in summary.notices:
        note(notice)
    ranks = "1 rank" if summary.num_ranks == 1 else f"{summary.num_ranks} ranks"
    say(f"capture  {summary.path}: {summary.num_events:,} events of {ranks}")
    say(f"next     kprof report {summary.path}")
