"""The Python stacks of ranks: faulthandler writes them when it gets STACKS_SIGNAL, also while the
rank waits for a kernel or holds the interpreter lock. They stand at the end of `rank-N.live`, which
is longer than its numbers once the rank may be asked.
"""

from __future__ import annotations

import faulthandler
import os
import re
from pathlib import Path
from typing import IO, Final

from kprof.capture.names import rank_file
from kprof.capture.processes import STACKS_SIGNAL
from kprof.private import open_plain

# Frames of installed packages, of Python itself and of kprof say little to who wrote the workload.
_LIBRARY: Final = re.compile(
    rf"/(site|dist)-packages/|/lib/python3|^<|^{re.escape(str(Path(__file__).parents[1]))}/"
)
_FRAME: Final = re.compile(r'File "(.*)", line (\d+) in (.*)')


# The process writes to one file. It stays open: who asks late must not end the process.
_file: IO[bytes] | None = None


def open_stacks(directory: Path, rank: int) -> IO[bytes] | None:
    """Let others ask this process for its stacks, in place of an earlier rank of this process; None
    where the disk refuses."""
    global _file
    try:
        opened = open_plain(rank_file(directory, rank, "live"), os.O_WRONLY | os.O_APPEND)
        file = os.fdopen(opened, "wb", buffering=0)
        # Only of the main thread, which gets the signal: reading the stack of a thread that runs is
        # a race that ends the process.
        faulthandler.register(STACKS_SIGNAL, file=file, all_threads=False)
        # Others send the signal from here on; without a handler it would kill.
        file.write(b"\n")
    except OSError:
        return None
    if _file is not None:
        _file.close()
    _file = file
    return file


def place_in(stack: tuple[str, ...]) -> str:
    """Where a rank stands: its own line, and what that has called."""
    own = next((frame for frame in stack if not _LIBRARY.search(frame)), stack[0])
    inside = "" if own == stack[0] else f" (inside {stack[0].rpartition(' in ')[2]})"
    return own.removeprefix(f"{Path.cwd()}/") + inside


def parse_stack(text: str) -> tuple[str, ...]:
    """The frames in what faulthandler writes; where there are several threads, of the last one."""
    last = text.rpartition("hread 0x")[2]
    return tuple(f"{path}:{line} in {name}" for path, line, name in _FRAME.findall(last))
