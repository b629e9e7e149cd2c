"""Who waits for whom in collectives while a program runs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.capture.directory import read_alignment
from kprof.capture.manifest import RankAlignment
from kprof.nccl.clocks import common_clock, machines_of
from kprof.nccl.collectives import OPERATION, waits_of
from kprof.nccl.events import Rank, channels_of, resolve
from kprof.nccl.live import LATEST, rings_of
from kprof.nccl.ring import Ring, read_ring
from kprof.on_use import pd

# What a look reads at most of a ring: 8 MiB.
_MOST: Final = 1 << 17
# Clocks drift apart.
_ALIGN_S: Final = 10.0


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
        for ring in rings_of(self._directory, 1):
            num_new = ring.num_events - self._num_seen.get(ring.path, ring.num_events)
            self._num_seen[ring.path] = ring.num_events
            with contextlib.suppress(OSError, ValueError):
                found.append(read_ring(ring.path, min(num_new + LATEST, _MOST)) or ring)
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
