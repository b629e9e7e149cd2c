"""Writes what a rank's arenas hold as parts of its events (see kprof.capture.parts)."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kprof import abi
from kprof.capture.journal import Captured
from kprof.capture.manifest import Launch
from kprof.capture.parts import SAVED, PartWriter
from kprof.on_use import pa
from kprof.rank_memory import DISCARDED, Word
from kprof.recording.arenas.arena_state import ArenaState
from kprof.recording.arenas.turns import Turns, Used
from kprof.recording.decoding.decode import Decoder
from kprof.recording.endings.complaints import complain
from kprof.recording.endings.lifetime import forks_pass, forks_wait
from kprof.recording.endings.signals import deferring_signals
from kprof.recording.launches.launch_buffer import LaunchBuffer
from kprof.recording.launches.launch_log import LaunchLog, Plan
from kprof.recording.retention.bell import Bell

if TYPE_CHECKING:
    from kprof.capture.manifest import RankInfo
    from kprof.recording.launches.progress import Progress

# Why the capture of a rank is cut short whose process ended after a flush.
NEVER_CLOSED: Final = "it ended without closing its recorder"
# About a second of writing, at whose end a program would look as if it hung.
_WORTH_SAYING_EVENTS: Final = 1_000_000
# How long a save waits for a part that is being written.
_PATIENCE_S: Final = 5.0

# All that is known of the rank now, with these launches. The text says why it is cut short.
InfoOf = Callable[[Decoder, Sequence[Launch], str], "RankInfo"]
_Content = tuple[ArenaState, np.ndarray]


@dataclass(frozen=True)
class Choice:
    """What of an arena becomes a part: the launches of these calls, all launches where that is
    None."""

    calls: tuple[int, ...] = ()
    launches: range | None = None

    def has(self, row: Launch) -> bool:
        """Whether a launch is chosen."""
        return self.launches is None or row.launch in self.launches

    def events_of(self, table: pa.Table) -> pa.Table:
        """The events that are chosen."""
        if self.launches is None:
            return table
        launch = table["launch"].to_numpy()
        return table.filter((launch >= self.launches.start) & (launch < self.launches.stop))


_ALL: Final = (Choice(),)


def _most_events(used: Sequence[Used]) -> int:
    """How many events these arenas hold at most."""
    states = [each.arena.snapshot_of_state(each.handed) for each in used]
    return sum(state.num_used_chunks for state in states) * abi.RECORDS_PER_CHUNK


class Keeper:
    """Writes the events of one rank, and tells `progress` of them. Any thread may call it, and one
    at a time does its work."""

    def __init__(
        self,
        directory: Path,
        rank: int,
        turns: Turns,
        decoder: Decoder,
        launches: LaunchLog,
        info: InfoOf,
        progress: Progress,
    ) -> None:
        self.directory, self.rank = directory, rank
        self.turns, self.decoder, self.launches = turns, decoder, launches
        self.parts = PartWriter(directory, rank)
        self.has_discarded = False
        self.now_s = progress.now_s
        self._info, self._progress = info, progress
        self._lock = threading.Lock()
        # Threads that wait for it, and a bell for those who let them wait.
        self._waiting = set[int]()
        self._wanted = Bell()
        # Called after each block that is read or written.
        self.rest: Callable[[], object] = lambda: None
        # The launches of the arena before the last one that was emptied have lower numbers.
        self._end_launch = 0
        self._num_removed = 0

    def keep_all(self, choices: Sequence[Sequence[Choice]] | None = None) -> list[Used]:
        """Write everything, and empty the arenas; no kernel that records is running.

        With `choices`, writes only these, a part for each: those of the oldest arena first. Arenas
        beyond the last of `choices` hold nothing that is chosen.
        """
        with self._alone():
            used = self.turns.used(self.launches.end)
            # Rank 0 speaks for all.
            if not self.rank and (most_events := _most_events(used)) >= _WORTH_SAYING_EVENTS:
                complain(f"rank 0 is writing up to {most_events:,} events")
            contents = (each.arena.read(each.handed) for each in used)
            if choices is None:
                states = self._keep(used, contents, _ALL)
            else:
                read = list(contents)
                for each, content, chosen in zip(used, read, choices, strict=False):
                    self._keep([each], [content], chosen)
                states = [state for state, _ in read]
            for each, state in zip(used, states, strict=True):
                self.turns.reset(each, state)
            return used

    def keep_rest(self) -> None:
        """Write everything when the recorder is closed."""
        self.keep_all()

    def hurry(self) -> None:
        """From now on somebody always waits."""
        self._waiting.add(-1)
        self._wanted.ring()

    def is_wanted(self, timeout_s: float) -> bool:
        """Whether anybody waits for what is being written; looks for so long."""
        self._wanted.hear(0 if self._waiting else timeout_s)
        return bool(self._waiting)

    def keep_ended(self, choices: Sequence[Choice] = _ALL) -> Used | None:
        """Write a part for each choice of the oldest retired arena, once its launches have ended,
        and empty it; without a choice, do not read it.

        Kernels may run meanwhile. Returns the arena, if there was one.
        """
        with self._alone():
            retired = self.turns.retired
            if not retired or not retired[0].has_ended():
                return None
            oldest = retired[0]
            contents = [oldest.arena.snapshot(oldest.handed)] if choices else []
            latest = oldest.arena.snapshot_of_state(oldest.handed)
            if any(state != latest for state, _ in contents):
                # A launch is running on a stream that the recorder does not know.
                return None
            with forks_pass():
                self.rest()
            self._keep([oldest], contents, choices)
            self.turns.wipe(oldest, latest)
            return oldest

    def captured_buffer(self, plan: Plan, number: int, num_whole: int) -> LaunchBuffer:
        """The buffer of a launch that is replayed: of `num_whole` whole programs, or of others. A
        pause concerns its replays."""
        row = self.launches.row(number, plan)
        self.decoder.replays.add(row)
        if self.launches.journal is not None:
            self.launches.journal.say(Captured(row, plan.table_idx))
        return self.turns.captured_buffer(number, num_whole)

    def remove_part(self, number: int) -> None:
        """Remove a part and its events; raises CaptureError."""
        with self._alone():
            # First: whoever finds the rank dead must not miss what it removed itself.
            self._progress.note_removed(self.parts.num_events(number))
            table = self.parts.take(number)
            region, flags = (table[name].to_numpy() for name in ("region", "flags"))
            self._num_removed += len(region)
            self.decoder.tally.remove_events(region, flags)

    def share_in_use(self) -> float:
        """How full the active arena is, 0 to 1, while kernels run."""
        with self._alone():
            return self.turns.active.snapshot_of_state().share_in_use

    def save(self, look: Callable[[int, np.ndarray], object] = lambda _, __: None) -> None:
        """Write what the arenas hold now, whatever runs on the device, and do not empty them.

        The next part that is written takes the place of this one. `look` is given the address of
        every arena and the bytes of its chunks.
        """

        def contents() -> Iterator[_Content]:
            for each in used:
                state, chunks = each.arena.snapshot(each.handed)
                look(each.arena.address, chunks)
                yield state, chunks

        with self._locked(_PATIENCE_S) as is_held:
            if not is_held:
                return
            used = self.turns.used(self.launches.end)
            rows = self.launches.waiting()
            decoder = _copy_while_used(self.decoder)
            self.parts.save(
                _tables(decoder, used, contents(), []),
                lambda: self._info(decoder, decoder.replays.merged(rows), SAVED),
            )

    def _keep(
        self, used: Sequence[Used], contents: Iterable[_Content], choices: Sequence[Choice]
    ) -> list[ArenaState]:
        """Write a part of these arenas for each choice, or discard their events without one.

        Returns what they held. Raises CaptureError.
        """
        end, states = used[-1].end_launch, list[ArenaState]()
        launches = self.launches
        self.decoder.tally.note_left_out(launches.num_calls_left_out, launches.num_left_out)

        @functools.cache
        def rows() -> list[Launch]:
            return self.decoder.replays.merged(self.launches.waiting(end))

        def info(choice: Choice) -> RankInfo:
            return self._info(
                self.decoder, [row for row in rows() if choice.has(row)], NEVER_CLOSED
            )

        for each in used:
            each.arena.account[Word.WRITTEN_TO] = self.parts.num_parts + 1 if choices else DISCARDED
        if not choices:
            self.has_discarded = True
            self.decoder.replays.begin_stretch()
        ranges = [choice.launches for choice in choices if choice.launches is not None]
        only = ranges if len(ranges) == len(choices) else None
        tables: Iterable[pa.Table] = _tables(self.decoder, used, contents, states, only)
        if len(choices) > 1:
            tables = list(tables)
        for choice in choices:
            self._write(map(choice.events_of, tables), functools.partial(info, choice))
        self.launches.forget(end)
        # Forget the arena before this one: a launch of this one may still write a little late.
        captured = set(self.decoder.replays.captured)
        self.launches.region_ids.forget(self._end_launch, captured)
        self._end_launch = end
        return states

    def _write(self, tables: Iterator[pa.Table], info: Callable[[], RankInfo]) -> None:
        """Write a part that stays; raises CaptureError."""
        self.parts.save(self._told(tables), info)
        self.parts.keep()
        counts = self.decoder.tally.counts
        self._progress.set_counts(counts.recorded + self._num_removed, counts.dropped)

    def _told(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            self._progress.add_waits(table, self.decoder.region_ids.merged())
            yield table
            with forks_pass():
                self.rest()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        # If a signal came half way, events would be both in a part and in their arena.
        with self._locked(), deferring_signals():
            yield

    @contextlib.contextmanager
    def _locked(self, timeout_s: float = -1) -> Iterator[bool]:
        """Yields whether the lock is held: not where others hold it for longer than the timeout."""
        own = threading.get_ident()
        self._waiting.add(own)
        self._wanted.ring()
        is_held = self._lock.acquire(timeout=timeout_s)
        self._waiting.discard(own)
        try:
            with forks_wait() if is_held else contextlib.nullcontext():
                yield is_held
        finally:
            if is_held:
                self._lock.release()


def _tables(
    decoder: Decoder,
    used: Iterable[Used],
    contents: Iterable[_Content],
    states: list[ArenaState],
    only: Sequence[range] | None = None,
) -> Iterator[pa.Table]:
    """The events of some arenas; adds to `states` what each of them held."""
    for each, (state, chunks) in zip(used, contents, strict=True):
        states.append(state)
        yield from decoder.decode(state, chunks, each.end_launch, only)


def _copy_while_used(decoder: Decoder) -> Decoder:
    """A copy, although another thread may add launches and regions meanwhile."""
    while True:
        # "dictionary changed size during iteration"
        with contextlib.suppress(RuntimeError):
            copied = copy.deepcopy(decoder)
            copied.region_ids.stay()
            return copied
