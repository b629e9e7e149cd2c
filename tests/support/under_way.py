"""A `kprof record` that is under way, for tests that end its processes in some way."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

_LOOK_EVERY_S = 0.02


class Recording:
    """Starts a command whose workload writes a line with its pid into `fifo` when it has come to
    its point.

    Nothing here waits for a process that has ended: a workload that fails gives its own words, not
    a timeout.
    """

    def __init__(
        self, folder: Path, line: Callable[[Path, Path], Sequence[str]], **environment: str
    ) -> None:
        self.run = folder / "run.kprof"
        self.unfinished = folder / "run.kprof.unfinished"
        fifo = folder / "fifo"
        os.mkfifo(fifo)
        # Open for reading and writing: opening does not wait, and the end of one writer is no end
        # of the file.
        self._ready = os.fdopen(os.open(fifo, os.O_RDWR), "rb", buffering=0)
        self._ranks: list[int] = []
        # A file, not a pipe: ranks that outlive kprof would keep a pipe open.
        self._errors = folder / "stderr"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                line(self.run, fifo),
                env=os.environ | environment,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def ready(self) -> int:
        """The pid of the next rank that has come to its point."""
        self.until(lambda: bool(select.select([self._ready], [], [], 0)[0]))
        self._ranks.append(int(self._ready.readline()))
        return self._ranks[-1]

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that kprof or a rank is about to do."""
        while not condition():
            if self.process.poll() is not None and not condition():
                raise AssertionError(f"exit {self.process.returncode}: {self.errors()}")
            time.sleep(_LOOK_EVERY_S)

    def errors(self) -> str:
        """What kprof and the ranks wrote to stderr until now."""
        return self._errors.read_text()

    def end(self) -> str:
        """Wait for kprof itself; returns `errors()`."""
        self.process.wait()
        return self.errors()

    def kill(self) -> None:
        """Leave nothing behind, whatever became of the test."""
        self._ready.close()
        self.process.kill()
        self.process.wait()
        for rank in self._ranks:
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
