"""A rank of a service, without `kprof record`: rank 1 never makes its second launch.

    RANK=1 EXCHANGE_FLAGS=/dev/shm/x python -m planted_hangs.service OUTPUT

What `on_hang` gets is a line on stdout.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from pathlib import Path
from typing import TypeVar

import kprof
from kprof.hangs.report import Hang
from planted_hangs.rank import Rank
from planted_hangs.world import REGIONS, Fault

T = TypeVar("T")


class FileGroup:
    """Two processes that exchange objects in files of a folder."""

    world_size = 2

    def __init__(self, folder: Path) -> None:
        self.rank = int(os.environ["RANK"])
        self._folder, self._number = folder, 0

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, by rank."""
        paths = [self._folder / f"{self._number}-{rank}.pickle" for rank in range(2)]
        self._number += 1
        temporary = paths[self.rank].with_suffix(".tmp")
        temporary.write_bytes(pickle.dumps(value))
        temporary.replace(paths[self.rank])
        while not all(path.exists() for path in paths):
            time.sleep(0.01)
        return [pickle.loads(path.read_bytes()) for path in paths]

    def barrier(self) -> None:
        """Wait until both ranks call this."""
        self.all_gather(None)


def serve(output: Path) -> None:
    """What a service would do."""

    def on_hang(hang: Hang) -> None:
        print(hang.diagnosis, flush=True)

    group = FileGroup(output.parent)
    with (
        kprof.session(output, REGIONS, arena_bytes=1 << 20, group=group) as recorder,
        kprof.watchdog(recorder, after_s=1, on_hang=on_hang),
    ):
        Rank(Fault.NEVER_LAUNCHES, None, "cpu").run()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
