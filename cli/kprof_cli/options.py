"""Options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from kprof.trace.selection import SelectionText

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A capture, such as run.kprof.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
GithubOption = Annotated[
    bool,
    typer.Option(
        "--github", help="Print Markdown, for $GITHUB_STEP_SUMMARY or a comment on a pull request."
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", "-f", help="Replace an output that exists.")]
OutputOption = Annotated[Path, typer.Option("-o", "--output", help="The capture to write.")]
LimitOption = Annotated[int, typer.Option(min=0, help="Print at most this many rows; 0 for all.")]

DaskOption = Annotated[
    str | None,
    typer.Option(
        "--dask",
        metavar="ADDRESS",
        help="Spread the ranks over a Dask cluster, like tcp://host:8786.",
    ),
]

PageOption = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Write a self-contained HTML page."),
]

_SELECTION: Final = {
    "ranks": "Ranks, like 0-3,7.",
    "blocks": "Threadblocks, like 0-15.",
    "launches": "Launch numbers, like 0,2-4.",
    "regions": "Regions, like 'dispatch/*'.",
    "time": "Time after the first event, like 10us..50us.",
}


def selecting(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that select events.

    It receives them as its argument `selection`.
    """

    @functools.wraps(command)
    def with_options(**given: object) -> None:
        text = {name: given.pop(name) for name in _SELECTION}
        command(**given, selection=SelectionText(**text))  # type: ignore[arg-type]

    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.name != "selection"]
    options = [_selection_option(name, text) for name, text in _SELECTION.items()]
    # typer reads the options of a command from here.
    signature = signature.replace(parameters=[*own, *options])
    with_options.__signature__ = signature  # type: ignore[attr-defined]
    return with_options


def _selection_option(name: str, text: str) -> inspect.Parameter:
    option = Annotated[str | None, typer.Option(help=text, rich_help_panel="Selection")]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
