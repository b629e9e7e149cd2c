"""How far collectives are while a program runs: from the rings that it writes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import structs

from kprof.capture.directory import read_alignment
from kprof.capture.manifest import Alignment, RankAlignment
from kprof.capture.shared_memory import memory_of
from kprof.errors import KprofError
from kprof.hangs.report import Hang
from kprof.hangs.watch import Directory, Watch
from kprof.nccl.clocks import common_clock, machines_of
from kprof.nccl.collectives import OPERATION, waits_of
from kprof.nccl.entries import never_entered
from kprof.nccl.events import Rank, channels_of, resolve
from kprof.nccl.ring import Ring, read_ring, rings_in
from kprof.private import is_locked

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

# Some hundred calls, more than ranks can be apart.
_LATEST: Final = 8192
# What a look reads at most of a ring: 8 MiB.
_MOST: Final = 1 << 17
# Clocks drift apart.
_ALIGN_S: Final = 10.0
_KIND: Final = "collectives"


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
    rings = _rings_of(directory, 1)
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


class CollectivesWatch(Watch):
    """Decides whether collectives hang: for `after_s` no process has told of anything, and ranks
    are in one that others have not entered, or that none has ended."""

    def __init__(self, directory: Path, after_s: float) -> None:
        super().__init__(Directory(directory), after_s)
        self._directory = directory

    def step(self, now_s: float) -> Hang | None:
        """Look at the rings; a report when they show a hang, and again once they have moved."""
        rings = _rings_of(self._directory, 1)
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


def waiting_now(directory: Path) -> list[str]:
    """A sentence for each collective that waits at this moment."""
    rings = _rings_of(directory, _LATEST)
    ranks, _ = resolve(rings)
    return never_entered(rings, ranks, is_over=False) if ranks else []


def with_collectives(hang: Hang, directory: Path) -> Hang:
    """With those that wait now, before anything else where no kernel waits."""
    said = tuple(waiting_now(directory))
    if said and not hang.waits:
        return structs.replace(hang, diagnosis=said[0], kind=_KIND, others=said[1:])
    return structs.replace(hang, others=(*hang.others, *said))


class CollectiveWaits:
    """Who has waited for whom in collectives since the first look. Several threads may look."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._num_seen: dict[Path, int] = {}
        # The latest call that has been counted, by communicator and function.
        self._latest: dict[Hashable, int] = {}
        self._waited_ns: dict[int, NDArray[np.int64]] = {}
        self._clocks: dict[int, RankAlignment] = {}
        self._align_at_s = 0.0
        self._lock = threading.Lock()

    def look(self, num_peers: int) -> Mapping[int, NDArray[np.int64]]:
        """By rank what all its channels have waited for each peer, in ns, shape (num_peers,)."""
        with self._lock:
            rings = self._read()
            ranks, _ = resolve(rings)
            channels = channels_of(rings, ranks)
            if len(channels) and self._are_aligned(channels, rings, ranks):
                ended = _ended_on_all(channels)
                for key, calls in ended.groupby(["comm", "func"]):
                    new = calls[calls["seq"] > self._latest.get(key, -1)]
                    self._latest[key] = max(calls["seq"].max(), self._latest.get(key, -1))
                    self._add(new, num_peers)
            return dict(self._waited_ns)

    def _read(self) -> list[Ring]:
        """The rings with what is new in them, and what may not have ended before."""
        found = []
        for ring in _rings_of(self._directory, 1):
            num_new = ring.num_events - self._num_seen.get(ring.path, ring.num_events)
            self._num_seen[ring.path] = ring.num_events
            with contextlib.suppress(OSError, ValueError):
                found.append(read_ring(ring.path, min(num_new + _LATEST, _MOST)) or ring)
        return found

    def _are_aligned(
        self,
        channels: pd.DataFrame,
        rings: Sequence[Ring],
        ranks: Mapping[tuple[int, int], Rank],
    ) -> bool:
        """Whether all ranks are on one clock, which is looked at again now and then."""
        needed, now_s = frozenset(each.rank for each in ranks.values()), time.monotonic()
        if needed - self._clocks.keys() or now_s >= self._align_at_s:
            self._align_at_s = now_s + _ALIGN_S
            alignment: Alignment | None = None
            with contextlib.suppress(KprofError):
                alignment = read_alignment(self._directory)
            if alignment is None or needed - {entry.rank for entry in alignment.ranks}:
                machines = machines_of(rings, ranks)
                alignment, _ = common_clock(channels, ranks.values(), needed, machines)
            self._clocks = {entry.rank: entry for entry in alignment.ranks} if alignment else {}
        return bool(self._clocks)

    def _add(self, channels: pd.DataFrame, num_peers: int) -> None:
        waits = waits_of(channels, self._clocks)
        sums = waits.groupby(["rank", "awaited"])["wait_ns"].sum().reset_index()
        for rank, peer, ns in sums.to_numpy().tolist():
            if peer < num_peers:
                mine = self._waited_ns.setdefault(rank, np.zeros(num_peers, np.int64))
                mine[peer] += ns


def _ended_on_all(channels: pd.DataFrame) -> pd.DataFrame:
    """The calls of which every rank has ended every channel."""
    sound = channels.assign(is_open=channels["stop_ns"] < 0)
    calls = sound.groupby(OPERATION)
    num_ranks, is_open = calls["rank"].transform("nunique"), calls["is_open"].transform("any")
    return channels[(num_ranks == channels["group_size"]) & ~is_open]


def _rings_of(directory: Path, most: int) -> list[Ring]:
    return rings_in(memory_of(directory), directory, most=most)
