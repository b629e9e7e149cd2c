"""Options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from kprof.trace.selection import SelectionText

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A capture, such as run.kprof.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
ForceOption = Annotated[bool, typer.Option("--force", "-f", help="Replace an output that exists.")]
OutputOption = Annotated[Path, typer.Option("-o", "--output", help="The capture to write.")]
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
_SELECTION: Final = {
    "ranks": RanksOption,
    "blocks": BlocksOption,
    "launches": LaunchesOption,
    "regions": RegionsOption,
    "time": TimeOption,
}


def selecting(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that select events; it receives them as its argument `selection`."""

    @functools.wraps(command)
    def with_options(**given: object) -> None:
        text = {name: given.pop(name) for name in _SELECTION}
        command(**given, selection=SelectionText(**text))  # type: ignore[arg-type]

    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.name != "selection"]
    options = (
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in _SELECTION.items()
    )
    # typer reads the options of a command from here.
    with_options.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return with_options
