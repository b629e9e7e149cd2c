"""A running `kprof record`, for tests that end its processes in some way."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_LOOK_EVERY_S = 0.02


def until(
    process: subprocess.Popen[Any],
    condition: Callable[[], bool],
    errors: Callable[[], str] = lambda: "",
) -> None:
    """Wait for something that a process will do; fails if it ends before, with its `errors`."""
    while not condition():
        if process.poll() is not None and not condition():
            raise AssertionError(f"exit {process.returncode}: {errors()}")
        time.sleep(_LOOK_EVERY_S)


class Recording:
    """Starts a command whose workload writes a line with its pid into `fifo` when it is ready. Never waits for a
    process that has ended, so a workload that fails shows its own message, not a timeout."""

    def __init__(
        self, folder: Path, line: Callable[[Path, Path], Sequence[str]], **environment: str
    ) -> None:
        self.run = folder / "run.kprof"
        self.unfinished = folder / "run.kprof.unfinished"
        fifo = folder / "fifo"
        os.mkfifo(fifo)
        # Opened for reading and writing, so that opening does not wait, and a writer that closes
        # does not end the file.
        self._ready = os.fdopen(os.open(fifo, os.O_RDWR), "rb", buffering=0)
        self._ranks: list[int] = []
        # A file, because ranks that outlive kprof would keep a pipe open.
        self._errors = folder / "stderr"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                line(self.run, fifo),
                env=os.environ | environment,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def ready(self) -> int:
        """The pid of the next rank that is ready."""
        self.until(lambda: bool(select.select([self._ready], [], [], 0)[0]))
        self._ranks.append(int(self._ready.readline()))
        return self._ranks[-1]

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that kprof or a rank will do."""
        until(self.process, condition, self.errors)

    def errors(self) -> str:
        """What kprof and the ranks wrote to stderr until now."""
        return self._errors.read_text()

    def end(self) -> str:
        """Wait for kprof itself; returns `errors()`."""
        self.process.wait()
        return self.errors()

    def kill(self) -> None:
        """Clean up, however the test ended."""
        self._ready.close()
        self.process.kill()
        self.process.wait()
        for rank in self._ranks:
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
