"""Ranks that outlive their workload: whom to wait for, whom to tell, what to save."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from kprof.capture.claims import launch_counts, ranks_in_use
from kprof.capture.losses import count_launches, name_ranks
from kprof.capture.parts import state_of_parts
from kprof.capture.processes import all_pids, environment_of, signal_all, wait_until
from kprof.capture.started import pids_here
from kprof.errors import CaptureError
from kprof.hangs.look import note_hang
from kprof.recording.arenas.ledger import ranks_with_arenas
from kprof.recording.rank.process import RECORD_DIR_VARIABLE

Say = Callable[[str], None]

# A rank that can save itself needs much less; torchrun, too, gives its workers 15 s and more.
_SAVE_TIMEOUT_S: Final = 10.0
_END_TIMEOUT_S: Final = 15.0
_KILLED_TIMEOUT_S: Final = 5.0


class RecordingRanks:
    """The recording processes of a run, known by the directory that they record into."""

    def __init__(self, directory: Path, say: Say) -> None:
        # The workload may remove the folder that we are in.
        self._directory, self._say = directory.absolute(), say

    def _open(self) -> set[int]:
        """The ranks whose recorders are open."""
        return set(ranks_in_use(self._directory))

    def say_passed_on(self, number: int) -> None:
        """Say that SIGINT or SIGTERM is passed on, and what to do if that ends nothing."""
        if self._open():
            name, again = "Ctrl-C", "press it again"
            if number == signal.SIGTERM:
                name, again = "SIGTERM", f"kill -QUIT {os.getpid()}"
            self._say(
                f"passing {name} on; if the workload hangs, {again} to save what is recorded and "
                "to kill it"
            )

    def save(self) -> None:
        """Have the ranks that still record save their events, before they are killed, and keep what
        their kernels wait for.

        Says what cannot be saved.
        """
        if ranks := self._open():
            self._save(ranks)
        with contextlib.suppress(CaptureError, OSError):
            if diagnosis := note_hang(self._directory):
                self._say(f"the run hangs: {diagnosis}")

    def _save(self, ranks: set[int]) -> None:
        directory = self._directory
        counts = launch_counts(directory)
        launches = count_launches(sum(counts.get(rank, 0) for rank in ranks))
        self._say(
            f"saving what is there of {launches} of {name_ranks(sorted(ranks))}, "
            "then killing the workload; Ctrl-C again kills at once"
        )
        before = {rank: state_of_parts(directory, rank) for rank in ranks}

        def are_all_saved() -> bool:
            ranks.intersection_update(self._open())
            ranks.difference_update(
                [rank for rank in ranks if state_of_parts(directory, rank) != before[rank]]
            )
            return not ranks

        # The second signal makes a rank save at once (see saver.py).
        signal_all(pids_here(directory, ranks).values(), signal.SIGINT)
        wait_until(are_all_saved, _SAVE_TIMEOUT_S)
        outliving = ranks_with_arenas(directory)
        for unsaved, what in (
            (ranks - outliving, "is lost"),
            (ranks & outliving, "is read from memory after the kill"),
        ):
            if unsaved:
                self._say(
                    f"{name_ranks(sorted(unsaved))} did not save within {_SAVE_TIMEOUT_S:g} s: "
                    f"what is not written yet {what}"
                )

    def signal(self, number: int) -> None:
        """Send a signal to all of them."""
        signal_all(processes_of(self._directory), number)

    def wait(self, exit_code: int) -> None:
        """Wait for ranks that outlive the command that started them.

        After a success they were put in the background: their recording is waited for. After a
        failure (torchrun was killed, say) nobody else stops them: they get SIGTERM and some seconds
        to write what they have.
        """
        ranks = sorted(self._open())
        if not ranks:
            if exit_code == 128 + signal.SIGKILL:
                # What was killed with the workload takes a moment to end, and writes nothing more.
                wait_until(lambda: not processes_of(self._directory), _KILLED_TIMEOUT_S)
            return
        still = f"the workload has ended but not {name_ranks(ranks)}"
        if exit_code == 0:
            self._say(f"{still}: waiting; Ctrl-C stops what is left")
            wait_until(lambda: not self._open(), timeout_s=None)
            return
        self._say(f"{still}: sending SIGTERM")
        self.signal(signal.SIGTERM)
        wait_until(lambda: not self._open(), _END_TIMEOUT_S)


def processes_of(directory: Path) -> list[int]:
    """The living processes that were started to record into `directory`, in whatever session.

    Needs /proc.
    """
    wanted = f"{RECORD_DIR_VARIABLE}={directory.absolute()}".encode()
    found = []
    for pid in sorted({*all_pids()} - {os.getpid()}):
        with contextlib.suppress(OSError):
            if wanted in environment_of(pid):
                found.append(pid)
    return found


def wait_until_closed(directory: Path, ranks: Iterable[int]) -> None:
    """Wait for some seconds until these ranks have closed their recorders."""
    wanted = set(ranks)
    wait_until(lambda: not wanted.intersection(ranks_in_use(directory)), _END_TIMEOUT_S)
