"""`kprof hang`: who waits for whom in a run that hangs, or hung."""

from __future__ import annotations

from pathlib import Path

from typer import Argument

from kprof_cli.options import command
from kprof_cli.output import print_json, say


@command(path=Argument(metavar="RUN", help="A running recording, or its capture."))
def hang(path: Path = Path("run.kprof"), is_json: bool = False) -> None:
    """Show which block waits for which rank, and which rank is the root cause.

    For a running recording, shows its waits now; for a capture, the hang that it recorded.
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
