"""`kprof import`: events that something else recorded, as a capture."""

from __future__ import annotations

import math
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kprof.trace.selection import parse_duration_ns
from kprof_cli.options import ForceOption
from kprof_cli.output import note, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kprof.importers import ImportSummary


class Kind(str, Enum):
    """The formats that can be imported."""

    CLASSIC = "classic"
    CHROME = "chrome"
    TABLE = "table"


# What some formats alone can use; an option that would do nothing is a mistake to be told about.
_ONLY_FOR: Final = {
    "--names": (Kind.CLASSIC,),
    "--tick-ns": (Kind.CLASSIC, Kind.CHROME),
    "--rank-in-tid": (Kind.CHROME,),
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(import_events)


def import_events(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="One file; for the classic buffer one per rank, rank 0 first.",
            show_default=False,
        ),
    ],
    kind: Annotated[
        Kind,
        typer.Option(
            help="Hand-written int64 buffers, a Chrome trace, or a table (.csv, .parquet).",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The capture to write.")] = Path(
        "run.kprof"
    ),
    tick_ns: Annotated[
        float | None,
        typer.Option(
            help="Length of a tick in ns: 10 for classic and 1000 for chrome unless given.",
            show_default=False,
        ),
    ] = None,
    names: Annotated[
        str | None,
        typer.Option(help="Names of the tags of a classic buffer: a,b,c.", show_default=False),
    ] = None,
    regions: Annotated[
        Path | None,
        typer.Option(
            help="A regions.h that says which names are waits and sends.", show_default=False
        ),
    ] = None,
    is_rank_in_tid: Annotated[
        bool,
        typer.Option("--rank-in-tid", help="The rank was added to every thread id of a trace."),
    ] = False,
    bound: Annotated[
        str | None,
        typer.Option(
            help="All ranks read one clock, within this time of each other, like 100ns.",
            show_default=False,
        ),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Make a capture of events that something else recorded."""
    _check(kind, files, {"--names": names, "--tick-ns": tick_ns, "--rank-in-tid": is_rank_in_tid})
    shared = {
        "regions": _read_regions(regions),
        "bound_ns": None if bound is None else float(parse_duration_ns(bound, "--bound")),
        "force": force,
    }
    if tick_ns is not None:
        shared["tick_ns"] = tick_ns
    if kind is Kind.CLASSIC:
        shared["names"] = names.split(",") if names else ()
    if kind is Kind.CHROME:
        shared["is_rank_in_tid"] = is_rank_in_tid
    _print_summary(_import(kind, files, output, shared))


def _check(kind: Kind, files: Sequence[Path], given: dict[str, Any]) -> None:
    """Usage errors that typer cannot see."""
    for option, value in given.items():
        if value not in (None, False) and kind not in _ONLY_FOR[option]:
            kinds = " and ".join(kind.value for kind in _ONLY_FOR[option])
            raise typer.BadParameter(f"{option} is for --kind {kinds} only")
    if kind is not Kind.CLASSIC and len(files) > 1:
        raise typer.BadParameter(f"--kind {kind.value} takes one file, not {len(files)}")
    tick_ns = given["--tick-ns"]
    if tick_ns is not None and not 0 < tick_ns < math.inf:
        raise typer.BadParameter(f"--tick-ns is {tick_ns}; give a number above 0")


def _read_regions(path: Path | None) -> Any:
    from kprof.regions import RegionTable

    return None if path is None else RegionTable.from_header(path)


def _import(
    kind: Kind, files: Sequence[Path], output: Path, options: dict[str, Any]
) -> ImportSummary:
    from kprof import importers

    if kind is Kind.CLASSIC:
        return importers.import_classic(files, output, **options)
    if kind is Kind.CHROME:
        return importers.import_chrome(files[0], output, **options)
    return importers.import_table(files[0], output, **options)


def _print_summary(summary: ImportSummary) -> None:
    for notice in summary.notices:
        note(notice)
    ranks = "1 rank" if summary.num_ranks == 1 else f"{summary.num_ranks} ranks"
    say(f"capture  {summary.path}: {summary.num_events:,} events of {ranks}")
    say(f"next     kprof report {summary.path}")
