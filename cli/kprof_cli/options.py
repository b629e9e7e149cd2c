"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A capture, such as run.kprof.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
ForceOption = Annotated[bool, typer.Option("--force", "-f", help="Replace an output that exists.")]
LimitOption = Annotated[int, typer.Option(min=0, help="Print at most this many rows; 0 for all.")]

DaskOption = Annotated[
    str | None,
    typer.Option(
        "--dask",
        metavar="ADDRESS",
        help="Spread the ranks over a Dask cluster, like tcp://host:8786.",
        show_default=False,
    ),
]

_PANEL = "Selection"
RanksOption = Annotated[str | None, typer.Option(help="Ranks, like 0-3,7.", rich_help_panel=_PANEL)]
BlocksOption = Annotated[
    str | None, typer.Option(help="Threadblocks, like 0-15.", rich_help_panel=_PANEL)
]
LaunchesOption = Annotated[
    str | None, typer.Option(help="Launch numbers, like 0,2-4.", rich_help_panel=_PANEL)
]
RegionsOption = Annotated[
    str | None, typer.Option(help="Regions, like 'dispatch/*'.", rich_help_panel=_PANEL)
]
TimeOption = Annotated[
    str | None,
    typer.Option(help="Time after the first event, like 10us..50us.", rich_help_panel=_PANEL),
]
