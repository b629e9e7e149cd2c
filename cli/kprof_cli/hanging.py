"""`kprof hang`: who waits for whom in a run that hangs, or hung."""

from __future__ import annotations

from pathlib import Path

from typer import Argument

from kprof_cli.options import command
from kprof_cli.output import print_json, say


@command(path=Argument(metavar="RUN", help="A run that is under way, or its capture."))
def hang(path: Path = Path("run.kprof"), is_json: bool = False) -> None:
    """Say which block waits for which rank, and who is the root.

    Of a run under way it is a look at this moment; of one that has ended, the report of its hang.
    """
    from kprof.hangs.look import look_at
    from kprof.hangs.report import lines_of

    found = look_at(path)
    if is_json:
        import msgspec

        print_json(msgspec.to_builtins(found))
        return
    for line in lines_of(found):
        say(line)
