"""Writes what a rank's arenas hold as parts of its events (see kprof.capture.parts)."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kprof.capture.manifest import EventCounts
from kprof.capture.parts import PartWriter
from kprof.recording.arena_state import ArenaState
from kprof.recording.decode import Decoder
from kprof.recording.interrupts import deferring_signals
from kprof.recording.launch_log import LaunchLog, LaunchRow
from kprof.recording.ledger import DISCARDED, WRITTEN_TO
from kprof.recording.tally import sum_of
from kprof.recording.turns import Turns, Used

if TYPE_CHECKING:
    import pyarrow as pa

    from kprof.capture.manifest import Launch, RankInfo
    from kprof.recording.progress import Progress

# Why the capture of a rank is cut short whose process ended after a flush.
NEVER_CLOSED: Final = "it ended without closing its recorder"
# Of a part that the next one replaces.
SAVED: Final = "it was saved while it did not answer, so its last launch may lack events"
# How long a save waits for a part that is being written.
_PATIENCE_S: Final = 5.0

# All that is known of the rank now, with these launches. The text says why it is cut short.
InfoOf = Callable[[Decoder, Sequence[LaunchRow], str], "RankInfo"]
_Read = Callable[[Used], tuple[ArenaState, np.ndarray]]


@dataclass(frozen=True)
class Choice:
    """What of an arena becomes a part: the launches of these calls, all launches where that is
    None."""

    calls: tuple[int, ...]
    launches: range | None


class Keeper:
    """Writes the events of one rank. Any thread may call it, and one at a time does its work."""

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
        # `kprof watch` reads what is written there.
        self.progress: Progress | None = None
        self._lock = threading.Lock()
        # The launches of the arena before the last one that was emptied have lower numbers.
        self._end_launch = 0
        self._num_removed = 0

    @property
    def num_dropped(self) -> int:
        """How many events found no room, in all arenas that were written."""
        return self._decoder.tally.counts.dropped

    @property
    def next_part(self) -> int:
        """The number of the next part."""
        return self._parts.num_parts

    def keep_all(self, choices: Sequence[Sequence[Choice]] | None = None) -> list[Used]:
        """Write everything, and empty the arenas; no kernel that records is running.

        With `choices`, writes only these, a part for each: those of the oldest arena first. Arenas
        beyond the last of `choices` hold nothing that is chosen.
        """
        with self._alone():
            num_added = self._launches.num_added
            end_launch = self._launches.region_ids.num_launches
            used = self._turns.used(num_added, end_launch)
            if choices is None:
                states = self._keep(used, lambda each: each.arena.read(each.handed))
            else:
                read = [each.arena.read(each.handed) for each in used]
                for each, content, chosen in zip(used, read, choices, strict=False):
                    self._keep_chosen(each, content, chosen)
                states = [state for state, _ in read]
            for each, state in zip(used, states, strict=True):
                self._turns.reset(each, state)
            return used

    def keep_ended(self, choices: Sequence[Choice] | None = None) -> Used | None:
        """Write and empty the oldest retired arena, once its launches have ended.

        Kernels may run meanwhile. With `choices`, writes only these, a part for each. Returns the
        arena, if there was one.
        """
        with self._alone():
            oldest = self._oldest_ended()
            if oldest is None:
                return None
            state, chunks = oldest.arena.snapshot(oldest.handed)
            if oldest.arena.snapshot_of_state(oldest.handed) != state:
                # A launch is running on a stream that the recorder does not know.
                return None
            if choices is None:
                self._keep([oldest], lambda _: (state, chunks))
            else:
                self._keep_chosen(oldest, (state, chunks), choices)
            self._turns.wipe(oldest, state)
            return oldest

    def remove_part(self, number: int) -> None:
        """Remove a part and its events; raises CaptureError."""
        with self._alone():
            table = self._parts.take(number)
            region, flags = (table[name].to_numpy() for name in ("region", "flags"))
            self._num_removed += len(region)
            self._decoder.tally.remove_events(region, flags)

    def discard_ended(self) -> bool:
        """Empty the oldest retired arena without reading it, once its launches have ended.

        Returns whether there was one.
        """
        with self._alone():
            oldest = self._oldest_ended()
            if oldest is None:
                return False
            self._discard(oldest)
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

    def save(self, look: Callable[[int, np.ndarray], object] = lambda _, __: None) -> None:
        """Write what the arenas hold now, whatever runs on the device, and do not empty them.

        The next part that is written takes the place of this one. `look` is given the address of
        every arena and the bytes of its chunks.
        """

        def read(each: Used) -> tuple[ArenaState, np.ndarray]:
            state, chunks = each.arena.snapshot(each.handed)
            look(each.arena.address, chunks)
            return state, chunks

        if not self._lock.acquire(timeout=_PATIENCE_S):
            return
        try:
            used = self._turns.used(
                self._launches.num_added, self._launches.region_ids.num_launches
            )
            rows = self._launches.waiting()
            decoder = _copy_while_used(self._decoder)
            self._parts.save(
                _tables(decoder, used, read, []),
                lambda: self._info(decoder, decoder.replays.merged(rows), SAVED),
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
        """Write all of these arenas as a part; returns what they held. Raises CaptureError."""
        num_added, states = used[-1].num_added, list[ArenaState]()
        rows: list[LaunchRow] = []

        def info() -> RankInfo:
            rows.extend(self._decoder.replays.merged(self._launches.waiting(num_added)))
            return self._info(self._decoder, rows, NEVER_CLOSED)

        tables = _tables(self._decoder, used, read, states)
        _mark(used, self._parts.num_parts + 1)
        self._write(tables, info)
        self._launches.forget(num_added)
        self._forget_launches(used[-1].end_launch)
        return states

    def _keep_chosen(
        self, used: Used, content: tuple[ArenaState, np.ndarray], choices: Sequence[Choice]
    ) -> None:
        """Write a part for each choice; raises CaptureError."""
        if not choices:
            self._discard(used)
            return
        ranges = [choice.launches for choice in choices if choice.launches is not None]
        only = ranges if len(ranges) == len(choices) else None
        tables = list(self._decoder.decode(*content, used.end_launch, only))
        _mark([used], self._parts.num_parts + 1)
        rows = self._decoder.replays.merged(self._launches.waiting(used.num_added))
        for choice in choices:
            its_rows = [each for each in rows if _has(choice, each)]
            self._write(
                (_chosen(table, choice) for table in tables),
                functools.partial(self._info, self._decoder, its_rows, NEVER_CLOSED),
            )
        self._launches.forget(used.num_added)
        self._forget_launches(used.end_launch)

    def _discard(self, used: Used) -> None:
        self.has_discarded = True
        _mark([used], DISCARDED)
        self._launches.forget(used.num_added)
        self._decoder.replays.begin_stretch()
        self._forget_launches(used.end_launch)

    def _write(self, tables: Iterator[pa.Table], info: Callable[[], RankInfo]) -> None:
        """Write a part that stays; raises CaptureError."""
        self._parts.save(self._told(tables), info)
        self._parts.keep()
        if self.progress is not None:
            removed = EventCounts(recorded=self._num_removed)
            self.progress.set_counts(sum_of(self._decoder.tally.counts, removed))

    def _told(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            if self.progress is not None:
                self.progress.add_waits(table, self._decoder.region_ids.merged())
            yield table

    def _forget_launches(self, end_launch: int) -> None:
        """Forget the arena before this one: a launch of this one may still write a little late."""
        captured = set(self._decoder.replays.captured)
        self._launches.region_ids.forget(self._end_launch, captured)
        self._end_launch = end_launch

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        # If a signal came half way, events would be both in a part and in their arena.
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


def _mark(used: Sequence[Used], written_to: int) -> None:
    for each in used:
        each.arena.account[WRITTEN_TO] = written_to


def _has(choice: Choice, row: LaunchRow) -> bool:
    return choice.launches is None or row.launch in choice.launches


def _chosen(table: pa.Table, choice: Choice) -> pa.Table:
    """The events of the choice."""
    if choice.launches is None:
        return table
    launch = table["launch"].to_numpy()
    return table.filter((launch >= choice.launches.start) & (launch < choice.launches.stop))


def _copy_while_used(decoder: Decoder) -> Decoder:
    """A copy, although another thread may add launches and regions meanwhile."""
    while True:
        # "dictionary changed size during iteration"
        with contextlib.suppress(RuntimeError):
            return copy.deepcopy(decoder)
