"""Leaves a recording as ranks leave it that are killed: rank 0 with two parts, a save and an arena, rank 1 with an arena alone.

killed_state.py LIBRARY DIRECTORY [close]    with `close` both ranks end well in place of that
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

from kprof.recording.rank.recorder import Recorder
from replayed import emitted, new_buffer, run_kernel

ARENA_BYTES = 1 << 18
# Records per track of each launch, by rank.
SIZES = {0: (7, 9, 5, 4), 1: (8, 3)}
EMITTED = {rank: emitted(["run_marks"], sizes) for rank, sizes in SIZES.items()}


def launch_all(library: ctypes.CDLL, recorder: Recorder, rank: int) -> None:
    """All launches of a rank; rank 0 writes some of them on the way."""
    for number, size in enumerate(SIZES[rank]):
        run_kernel(library, "run_marks", new_buffer(recorder, "run_marks"), size, seed=1)
        if rank == 0 and number < 2:
            recorder.flush()
        if rank == 0 and number == 2:
            recorder.save()


def main(library: ctypes.CDLL, directory: Path, ends_well: bool) -> None:
    recorders = [
        Recorder(directory, rank=rank, world_size=2, arena_bytes=ARENA_BYTES) for rank in (0, 1)
    ]
    for rank, recorder in enumerate(recorders):
        launch_all(library, recorder, rank)
    if ends_well:
        for recorder in recorders:
            recorder.close()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(ctypes.CDLL(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] == ["close"])
