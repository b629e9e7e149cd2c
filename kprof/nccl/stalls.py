"""Collectives that hang while a program runs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import structs

from kprof.hangs.report import Hang
from kprof.hangs.watch import Directory, Watch
from kprof.nccl.live import rings_of, waiting_now
from kprof.private import is_locked

_KIND: Final = "collectives"


class CollectivesWatch(Watch):
    """Decides whether collectives hang: for `after_s` no process has told of anything, and ranks
    are in one that others have not entered, or that none has ended."""

    def __init__(self, directory: Path, after_s: float) -> None:
        super().__init__(Directory(directory), after_s)
        self._directory = directory

    def step(self, now_s: float) -> Hang | None:
        """Look at the rings; a report when they show a hang, and again once they have moved."""
        rings = rings_of(self._directory, 1)
        told = [(ring.path, ring.num_events) for ring in rings]
        if told != self._seen:
            self.news = "NCCL moves again"
            self._seen, self._changed_s, self._tries = told, now_s, 0
        idle_s = now_s - self._changed_s
        if self.has_reported or idle_s < self.after_s:
            return None
        self._changed_s = now_s
        said = waiting_now(self._directory)
        if not said or not any(is_locked(ring.path) for ring in rings):
            return None
        self._tries = 1
        return Hang(round(idle_s, 1), said[0], _KIND, others=tuple(said[1:]))


def with_collectives(hang: Hang, directory: Path) -> Hang:
    """With those that wait now, before anything else where no kernel waits."""
    said = tuple(waiting_now(directory))
    if said and not hang.waits:
        return structs.replace(hang, diagnosis=said[0], kind=_KIND, others=said[1:])
    return structs.replace(hang, others=(*hang.others, *said))
