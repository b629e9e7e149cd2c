"""What the parameters of commands are on the command line, by name: those that several commands
share, and how a command declares its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final

from typer import Argument, Option
from typer.models import ParameterInfo

from kprof.capture.shared_memory import remove_garbage
from kprof.trace.selection import SelectionText

_SHARED: Final = {
    "run": Argument(metavar="RUN", help="A capture, such as run.kprof."),
    "is_json": Option("--json", help="Print JSON for programs."),
    "is_github": Option(
        "--github", help="Print Markdown, for $GITHUB_STEP_SUMMARY or a comment on a pull request."
    ),
    "force": Option("--force", "-f", help="Overwrite an existing output."),
    "limit": Option(min=0, help="Print at most this many rows (0: all)."),
    "dask": Option(metavar="ADDRESS", help="Analyse on a Dask cluster, like tcp://host:8786."),
}
_SELECTION: Final = {
    name: inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, Option(help=text, rich_help_panel="Selection")],
    )
    for name, text in {
        "ranks": "Ranks, like 0-3,7.",
        "blocks": "Threadblocks, like 0-15.",
        "launches": "Launch numbers, like 0,2-4.",
        "regions": "Regions, like 'dispatch/*'.",
        "time": "Time range after the first event, like 10us..50us.",
    }.items()
}
CAPTURE_OUTPUT: Final = Option("-o", "--output", help="The capture to write.")
PAGE_OUTPUT: Final = Option("-o", "--output", help="Write a self-contained HTML page.")


def command(**own: ParameterInfo) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command. `own` says what its parameters are on the command line, apart from
    those that commands share.

    In place of `selection`, the command line has the options that select events.
    """

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        has_selection = "selection" in signature.parameters

        @functools.wraps(function)
        def run(**given: Any) -> None:
            if has_selection:
                text = {name: given.pop(name) for name in _SELECTION}
                given["selection"] = SelectionText(**text)
            remove_garbage()
            function(**given)

        known = _SHARED | own
        parameters = [
            each.replace(annotation=Annotated[each.annotation, known[name]])
            for name, each in signature.parameters.items()
            if name != "selection"
        ]
        parameters += _SELECTION.values() if has_selection else ()
        # typer reads the options of a command from here.
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return declare


def defaults_of(function: Callable[..., None]) -> dict[str, Any]:
    """The default of each parameter of a command, by name."""
    parameters = inspect.signature(function).parameters
    return {name: each.default for name, each in parameters.items()}
