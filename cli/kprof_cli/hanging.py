"""`kprof hang`: who waits for whom in a run that hangs, or hung."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kprof_cli.options import JsonOption
from kprof_cli.output import print_json, say


def hang(
    path: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run that is under way, or its capture.")
    ] = Path("run.kprof"),
    json: JsonOption = False,
) -> None:
    """Say which block waits for which rank, and who is the root.

    Of a run under way it is a look at this moment; of one that has ended, the report of its hang.
    """
    from kprof.hangs.look import look_at
    from kprof.hangs.report import lines_of

    found = look_at(path)
    if json:
        import msgspec

        print_json(msgspec.to_builtins(found))
        return
    for line in lines_of(found):
        say(line)
