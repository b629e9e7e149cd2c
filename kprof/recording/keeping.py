"""Writes what the arenas of a rank hold as parts of its events (see kprof.capture.parts)."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kprof.capture.parts import PartWriter
from kprof.recording.arena_state import ArenaState
from kprof.recording.decode import Decoder
from kprof.recording.interrupts import deferring_signals
from kprof.recording.launch_log import LaunchLog, LaunchRow
from kprof.recording.turns import Turns, Used

if TYPE_CHECKING:
    import pyarrow as pa

    from kprof.capture.manifest import Launch, RankInfo
    from kprof.recording.progress import Progress

# What readers are told of a rank whose process ended after a flush, without closing its recorder.
_NEVER_CLOSED: Final = "it ended without closing its recorder"
_SAVED: Final = "it was saved while it did not answer, so its last launch may lack events"
# How long a save waits for a part that is being written.
_PATIENCE_S: Final = 5.0

# What is known of the rank now, with these launches, cut short for this reason.
InfoOf = Callable[[Decoder, Sequence[LaunchRow], str], "RankInfo"]
_Read = Callable[[Used], tuple[ArenaState, np.ndarray]]


class Keeper:
    """One rank's. Any thread may call it; one at a time is let in."""

    def __init__(
        self,
        directory: Path,
        rank: int,
        turns: Turns,
        decoder: Decoder,
        launches: LaunchLog,
        info: InfoOf,
    ) -> None:
        self._turns = turns
        self._decoder = decoder
        self._launches = launches
        self._info = info
        self._parts = PartWriter(directory, rank)
        self.has_discarded = False
        # Told of what is written, where somebody may watch.
        self.progress: Progress | None = None
        self._lock = threading.Lock()
        # The first launch that came after what the part before the last has.
        self._end_launch = 0

    @property
    def num_launches(self) -> int:
        """How many launches are in parts."""
        return self._launches.num_kept

    def keep_all(self) -> list[Used]:
        """Write everything, and empty the arenas; no kernel that records is running."""
        with self._alone():
            num_added = self._launches.num_added
            end_launch = self._launches.region_ids.num_launches
            used = self._turns.used(num_added, end_launch)
            states = self._keep(used, lambda each: each.arena.read(each.handed))
            for each, state in zip(used, states, strict=True):
                self._turns.reset(each, state)
            return used

    def keep_ended(self) -> Used | None:
        """Write and empty the retired arena that is the oldest, once its launches have ended.

        Kernels may run meanwhile. Returns the arena, if there was one.
        """
        with self._alone():
            oldest = self._oldest_ended()
            if oldest is None:
                return None
            state, chunks = oldest.arena.snapshot(oldest.handed)
            if oldest.arena.snapshot_of_state(oldest.handed) != state:
                # A launch on a stream that the recorder was not told of.
                return None
            self._keep([oldest], lambda _: (state, chunks))
            self._turns.wipe(oldest, state)
            return oldest

    def discard_ended(self) -> bool:
        """Empty the retired arena that is the oldest, once its launches have ended.

        Nothing of it is written. Returns whether there was one.
        """
        with self._alone():
            oldest = self._oldest_ended()
            if oldest is None:
                return False
            self.has_discarded = True
            self._launches.keep(oldest.num_added, 0)
            self._decoder.replays.begin_stretch()
            self._forget_launches(oldest.end_launch)
            self._turns.wipe(oldest, oldest.arena.snapshot_of_state(oldest.handed))
            return True

    def _oldest_ended(self) -> Used | None:
        retired = self._turns.retired
        return retired[0] if retired and retired[0].has_ended() else None

    def share_in_use(self) -> float:
        """How full the active arena is, 0 to 1, while kernels run."""
        with self._alone():
            arena = self._turns.active
            return arena.snapshot_of_state().num_used_chunks / arena.geometry.num_chunks

    def save(self) -> None:
        """Write what the arenas hold now, whatever runs on the device, and leave them as they are.

        The next call of anything here writes the same part again.
        """
        if not self._lock.acquire(timeout=_PATIENCE_S):
            return
        try:
            used = self._turns.used(
                self._launches.num_added, self._launches.region_ids.num_launches
            )
            rows = self._launches.waiting()
            decoder = _copy_while_used(self._decoder)
            self._parts.save(
                _tables(decoder, used, lambda each: each.arena.snapshot(each.handed), []),
                lambda: self._info(decoder, decoder.replays.merged(rows), _SAVED),
            )
        finally:
            self._lock.release()

    def launches(self) -> tuple[Launch, ...]:
        """All launches in parts; raises CaptureError."""
        return self._parts.launches()

    def finish(self, info: RankInfo) -> None:
        """Make the parts the rank's file; raises CaptureError."""
        self._parts.finish(info)

    def _keep(self, used: Sequence[Used], read: _Read) -> list[ArenaState]:
        """Write a part that stays; returns what the arenas held."""
        num_added, states = used[-1].num_added, list[ArenaState]()
        rows: list[LaunchRow] = []

        def info() -> RankInfo:
            rows.extend(self._decoder.replays.merged(self._launches.waiting(num_added)))
            return self._info(self._decoder, rows, _NEVER_CLOSED)

        tables = _tables(self._decoder, used, read, states)
        self._parts.save(self._told(tables), info)
        self._parts.keep()
        if self.progress is not None:
            self.progress.set_counts(self._decoder.tally.counts)
        self._launches.keep(num_added, len(rows))
        self._forget_launches(used[-1].end_launch)
        return states

    def _told(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            if self.progress is not None:
                self.progress.add_waits(table, self._decoder.region_ids.merged())
            yield table

    def _forget_launches(self, end_launch: int) -> None:
        """Those of the part before: a launch may run a little later than it should."""
        captured = set(self._decoder.replays.captured)
        self._launches.region_ids.forget(self._end_launch, captured)
        self._end_launch = end_launch

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        # Interrupted half way, events would be in a part and in their arena.
        with self._lock, deferring_signals():
            yield


def _tables(
    decoder: Decoder, used: Sequence[Used], read: _Read, states: list[ArenaState]
) -> Iterator[pa.Table]:
    """The events of some arenas; adds to `states` what each of them held."""
    for each in used:
        state, chunks = read(each)
        states.append(state)
        yield from decoder.decode(state, chunks, each.end_launch)


def _copy_while_used(decoder: Decoder) -> Decoder:
    """A copy, although another thread may add launches and regions meanwhile."""
    while True:
        # "dictionary changed size during iteration"
        with contextlib.suppress(RuntimeError):
            return copy.deepcopy(decoder)
