"""What stays of rings that are overwritten: what a snapshot has saved, and the slowest calls.

A thread of `kprof record` looks at the rings while the workload writes them, so that nothing of
this takes the workload's time. What it keeps lies beside the recording, in a file for each ring,
and is read as a part of it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.capture.claims import leave_message
from kprof.capture.output import completing
from kprof.capture.shared_memory import folders_of
from kprof.errors import CaptureError
from kprof.nccl.collectives import OPERATION
from kprof.nccl.events import CALLS, KERNEL_CH, channels_of, resolve
from kprof.nccl.ring import KEPT, RING_NAMES, Ring, read_ring, rings_in, united, write_kept
from kprof.on_use import pd

_LOOK_S: Final = 0.5
# A program that records without a pause needs some ms for a ring of 1 MiB.
_MOST_READS: Final = 8


def slowest(rings: Sequence[Ring], number: int) -> list[Ring]:
    """The rings with the records of the calls that took longest: a call takes as long as on the
    rank where it takes longest, and stays on all ranks."""
    ranks, _ = resolve(rings)
    found = channels_of(rings, ranks)
    found = found[found["stop_ns"] >= 0]
    if found.empty:
        return [replace(ring, records=ring.records[:0]) for ring in rings]
    found["turn"] = found.groupby(["rank", *OPERATION, "channel"], sort=False).cumcount()
    call = [*OPERATION, "turn"]
    times = found.groupby([*call, "rank"], sort=False).agg(
        start_ns=("start_ns", "min"), stop_ns=("stop_ns", "max")
    )
    longest_ns = (times["stop_ns"] - times["start_ns"]).groupby(level=call, sort=False).max()
    chosen = found.merge(longest_ns.nlargest(number).rename("longest_ns").reset_index(), on=call)
    return [
        replace(ring, records=_of_calls(ring, chosen.loc[chosen["ring"] == idx, "parent"]))
        for idx, ring in enumerate(rings)
    ]


def _of_calls(ring: Ring, handles: pd.Series[int]) -> NDArray[np.void]:
    """The records of these calls, of their channels and proxies, and of what is in those."""
    rows = ring.records
    is_call = np.isin(rows["kind"], CALLS)
    kept = is_call & np.isin(rows["handle"], handles)
    for _ in range(2):
        # Of a call, `subject` is a time.
        kept |= ~is_call & np.isin(rows["subject"], rows["handle"][kept])
    return rows[kept]


def snapshot(directory: Path) -> int:
    """Save all that rings hold now; returns the number of events. Raises CaptureError."""
    rings = _held_by_rings(directory)
    for ring in rings:
        _save(directory, ring)
    return sum(len(ring.records) for ring in rings)


def _held_by_rings(directory: Path) -> list[Ring]:
    """The rings, read again where the program has overwritten all of one while it was read."""
    for _ in range(_MOST_READS):
        rings = rings_in(*folders_of(directory))
        if all(len(ring.records) for ring in rings if ring.num_events):
            break
    return rings


def _save(directory: Path, ring: Ring) -> None:
    with completing(directory / f"{KEPT}{ring.path.name}") as path:
        write_kept(path, ring)


class SlowestCalls:
    """Keeps the `number` slowest calls of a recording, until it is closed."""

    def __init__(self, directory: Path, number: int) -> None:
        self._directory, self._number = directory, number
        self._kept: dict[Path, Ring] = {}
        # Of each ring, how many of its events have been looked at, and from which one on again.
        self._seen: dict[Path, tuple[int, int]] = {}
        self._num_missed = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kprof nccl", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking; what the rings hold now is looked at when the capture is made."""
        self._ending.set()
        self._thread.join()
        if self._num_missed:
            leave_message(
                self._directory,
                f"{self._num_missed:,} events of NCCL were overwritten before --keep-slowest had "
                "looked at them; give a larger --arena-size",
            )

    def _run(self) -> None:
        while not self._ending.wait(_LOOK_S):
            # A disk that refuses now may take it later.
            with contextlib.suppress(CaptureError):
                self.look()

    def look(self) -> None:
        """Take what is new in the rings, and keep of it and of what is kept the slowest calls."""
        folders = folders_of(self._directory)
        for path in {path for folder in folders for path in folder.glob(RING_NAMES)}:
            with contextlib.suppress(OSError, ValueError):
                self._take(path)
        rings = list(self._kept.values())
        for ring in slowest(rings, self._number):
            self._kept[ring.path] = ring
            _save(self._directory, ring)

    def _take(self, path: Path) -> None:
        num_seen, since = self._seen.get(path, (0, 0))
        ring = read_ring(path, since=since)
        if ring is None:
            return
        self._num_missed += max(ring.num_events - ring.num_records - num_seen, 0)
        self._seen[path] = ring.num_events, _first_unfinished(ring)
        kept = self._kept.get(path, ring)
        self._kept[path] = replace(ring, records=united(ring.records, kept.records))


def _first_unfinished(ring: Ring) -> int:
    """How many events come before the first call that has not ended: its end goes into them."""
    rows = ring.records
    calls, channels = rows[np.isin(rows["kind"], CALLS)], rows[rows["kind"] == KERNEL_CH]
    ended = np.isin(calls["handle"], channels["subject"])
    ended &= ~np.isin(calls["handle"], channels["subject"][channels["count"] == 0])
    open_ones = calls["handle"][~ended]
    return int(open_ones[0]) - 1 if len(open_ones) else ring.num_events
