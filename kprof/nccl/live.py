"""How far collectives are while a program runs: from the rings that it writes.

What every process that records imports; stalls.py and waited.py are for who watches.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kprof.capture.shared_memory import folders_of
from kprof.nccl.entries import never_entered
from kprof.nccl.events import resolve
from kprof.nccl.ring import Ring, rings_in
from kprof.private import is_locked

# Some hundred calls, more than ranks can be apart.
LATEST: Final = 8192


@dataclass(frozen=True)
class RankCounts:
    """What a rank has recorded: calls of collectives, sends and receives; of threads that share a
    ring, the first has its events."""

    rank: int
    is_running: bool
    num_calls: int
    num_events: int
    num_lost: int


def counts_of(directory: Path) -> list[RankCounts]:
    """All ranks of an unfinished recording that have made a communicator."""
    rings = rings_of(directory, 1)
    ranks, _ = resolve(rings)
    found = []
    for rank in sorted({each.rank for each in ranks.values()}):
        mine = [place for place, each in ranks.items() if each.rank == rank]
        calls = sum(ranks[place].comm.num_calls for place in mine)
        running, events, lost = False, 0, 0
        for idx in {idx for idx, _ in mine}:
            running |= is_locked(rings[idx].path)
            if rank == min(each.rank for (r, _), each in ranks.items() if r == idx):
                events += rings[idx].num_events
                lost += rings[idx].num_overwritten
        found.append(RankCounts(rank, running, calls, events, lost))
    return found


class Behind:
    """Which ranks have not entered a collective that others wait in."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._before: frozenset[str] = frozenset()

    def look(self) -> list[str]:
        """A sentence for each collective that waited at the look before, too."""
        said = waiting_now(self._directory)
        before, self._before = self._before, frozenset(said)
        return [sentence for sentence in said if sentence in before]


def waiting_now(directory: Path) -> list[str]:
    """A sentence for each collective that waits at this moment."""
    rings = rings_of(directory, LATEST)
    ranks, _ = resolve(rings)
    return never_entered(rings, ranks, is_over=False) if ranks else []


def rings_of(directory: Path, most: int) -> list[Ring]:
    """The rings of an unfinished recording, with so many of the latest events."""
    return rings_in(*folders_of(directory), most=most)
