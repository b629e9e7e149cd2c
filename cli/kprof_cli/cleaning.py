"""`kprof clean`: memory that recordings left which were killed."""

from __future__ import annotations

import shutil

from typer import Option

from kprof.capture.shared_memory import left_in_memory, remove_garbage
from kprof_cli.options import command
from kprof_cli.output import say


@command(force=Option("--force", help="Also remove what kprof recover could still read."))
def clean(force: bool = False) -> None:
    """List the shared memory of your recordings, and remove what nobody needs.

    What ranks left that were killed stays: kprof recover makes a capture of it.
    """
    remove_garbage()
    left = left_in_memory()
    for each in left:
        size = f"{each.size_bytes >> 20} MiB"
        if each.is_used():
            say(f"{size}  in use       {each.directory}")
        elif force:
            shutil.rmtree(each.folder, ignore_errors=True)
            say(f"{size}  removed      {each.directory}")
        else:
            say(f"{size}  recoverable  kprof recover {each.directory}")
    if not left:
        say("no recording has left anything in /dev/shm")
