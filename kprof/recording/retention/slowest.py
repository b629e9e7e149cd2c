"""Keeps the slowest calls of a run, however long it is.

    launches ──> active ──a call ends──> retired ──all ranks ended its calls──> a part per slow call

Arenas switch only where a call ends, so each call is in one arena. A call that is among the slowest
so far becomes a part of the capture. That part is removed when there are enough slower calls. An
arena without a slow call is emptied without reading it.

All ranks keep the same calls. The length of a call is the longest that any rank measured. Each rank
publishes its own slowest calls in its rank-00003.live: JSON after a checksum, because others may
read while it writes. That is enough: a call that is among the slowest of all is also among the
slowest of the rank that measured this length. A retired arena waits until all ranks have ended its
calls. It waits only while another one is free, so a rank that is far behind costs no events.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kprof.capture.claims import ranks_in_use
from kprof.capture.names import rank_file, rank_files
from kprof.capture.output import writing
from kprof.private import open_plain, read_plain
from kprof.rank_memory import LIVE_BYTES, NUMBERS_BYTES
from kprof.recording.retention.call_lengths import CallLengths, describe_length
from kprof.recording.retention.drainer import Drainer, Fail, Note
from kprof.recording.retention.keeping import Choice, Keeper
from kprof.recording.retention.retention import NUM_FOR_SLOWEST, Retention

# What a rank publishes when nobody has to wait for it any more.
_ALL_ENDED: Final = 1 << 62
_MAX_NAMED: Final = 10
_CHECKSUM_BYTES: Final = 4


class Published(msgspec.Struct, frozen=True):
    """What a rank lets others know: its slowest calls so far, as (number, length in s).

    `has_steps` tells whether the numbers count steps or launches.
    """

    has_steps: bool
    num_ended: int
    calls: tuple[tuple[int, float], ...] = ()


# Made here, not by the threads that use it: see kprof.capture.manifest.
_PUBLISHED: Final = msgspec.json.Decoder(Published)


@dataclass(frozen=True)
class Stretch:
    """The calls of an arena, with the numbers of their launches. Replays have none yet."""

    has_steps: bool
    launches: Mapping[int, range]


class SlowestCalls(CallLengths):
    """The slowest calls of a rank, and those of the arena in use. The launching thread notes calls.

    `num_launches` is called at the end of each call, and `is_replayed` tells whether graphs may
    have recorded in it.
    """

    def __init__(
        self,
        num_kept: int,
        num_launches: Callable[[], int],
        is_replayed: Callable[[], bool],
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(now_s)
        self._num_kept = num_kept
        self._num_launches, self._is_replayed = num_launches, is_replayed
        # Length and number, the slowest last.
        self._slowest: list[tuple[float, int]] = []
        self._launches: dict[int, range] = {}
        # The first launches of the call under way and of the arena in use.
        self._first_of_call = self._first_of_stretch = 0

    def take_stretch(self) -> Stretch:
        """The calls since this was last called."""
        stretch = Stretch(self.has_steps, self._launches)
        self._launches, self._first_of_stretch = {}, self._first_of_call
        return stretch

    def publish(self) -> Published:
        """For other ranks; any thread may call it."""
        # The number first: a call that it counts is among the calls.
        has_steps, num_ended = self.has_steps, self.num_ended
        slowest = self._slowest[-self._num_kept :]
        return Published(has_steps, num_ended, tuple((call, length) for length, call in slowest))

    def _note_call(self, length_s: float | None) -> None:
        launches = range(self._first_of_call, self._num_launches())
        self._first_of_call = launches.stop
        is_whole = length_s is not None and launches.start >= self._first_of_stretch
        if length_s is None or not is_whole or not (launches or self._is_replayed()):
            return
        self._launches[self.num_ended] = launches
        if len(self._slowest) < self._num_kept or length_s > self._slowest[0][0]:
            bisect.insort(self._slowest, (length_s, self.num_ended))
            if len(self._slowest) > self._num_kept:
                del self._slowest[0]

    def _forget(self) -> None:
        self._slowest, self._launches, self._first_of_call = [], {}, 0


class Ranking:
    """The slowest calls of all ranks together: `length_s` by number, the slowest first."""

    def __init__(self, published: Mapping[int, Published], num_kept: int) -> None:
        self._published = published
        self.has_steps = any(each.has_steps for each in published.values())
        longest: dict[int, float] = {}
        for each in published.values():
            for call, length_s in each.calls if each.has_steps == self.has_steps else ():
                longest[call] = max(length_s, longest.get(call, 0.0))
        slowest = sorted(longest.items(), key=lambda item: (-item[1], item[0]))
        self.length_s = dict(slowest[:num_kept])

    def slow_of(self, stretch: Stretch) -> list[int]:
        """The numbers of its calls that are among the slowest."""
        if stretch.has_steps != self.has_steps:
            return []
        return [call for call in stretch.launches if call in self.length_s]

    def is_known(self, stretch: Stretch, ranks: Collection[int]) -> bool:
        """Whether all these ranks have ended the calls of the stretch."""
        end = max(stretch.launches, default=-1) + 1
        return all(
            each is not None
            and (each.has_steps == stretch.has_steps or each.num_ended >= _ALL_ENDED)
            and each.num_ended >= end
            for each in map(self._published.get, ranks)
        )


class KeepSlowest(Drainer):
    """Writes the slowest calls, and empties arenas without a slow call unread."""

    calls: SlowestCalls

    # A call under way has to fit the other half.
    due_share = 0.5
    waits_for_steps = False
    keeps_calls_whole = True

    def __init__(self, keeper: Keeper, retention: Retention, fail: Fail, note: Note) -> None:
        super().__init__(keeper, retention, fail, note)
        self._num_kept = retention.keep_slowest
        # Nobody waits for a rank of which nothing is recorded.
        self._is_closed = not keeper.launches.wanted.has_rank(keeper.rank)
        self.calls = SlowestCalls(
            self._num_kept,
            lambda: keeper.launches.region_ids.num_launches,
            lambda: keeper.turns.has_captured and not keeper.turns.is_off,
            keeper.now_s,
        )
        self._stretches: deque[Stretch] = deque()
        # By number of the part: whether its calls are steps, and the slow ones among them.
        self._parts: dict[int, tuple[bool, tuple[int, ...]]] = {}
        self._has_neighbours = False
        self._latest: Published | None = None
        note(f"only the {self._num_kept} slowest calls of this run are kept")

    def note_switch(self) -> None:
        """The active arena was retired."""
        self._stretches.append(self.calls.take_stretch())
        super().note_switch()

    def keep_all(self) -> None:
        """Nothing: the call under way has no length yet, and arenas are emptied anyway."""

    def keep_rest(self) -> None:
        """Write the slow calls of what the arenas hold when the recorder is closed.

        Other ranks may still run: their latest calls are not known here.
        """
        self._is_closed = True
        ranking = self._ranking()
        stretches = [*self._stretches, self.calls.take_stretch()]
        self._remove_others(ranking)
        choices = [self._choices(ranking, each) for each in stretches]
        first = self._keeper.parts.num_parts
        self._keeper.keep_all(choices)
        for of_stretch, stretch in zip(choices, stretches, strict=True):
            self._note_parts(first, of_stretch, stretch.has_steps)
            first += len(of_stretch)
        self._note_kept(ranking)

    def _empty_oldest(self) -> bool:
        retired = self._turns.retired
        if not retired or not self._stretches or not retired[0].has_ended():
            self._publish()
            return False
        stretch, ranking = self._stretches[0], self._ranking()
        may_wait = len(retired) < NUM_FOR_SLOWEST - 1
        if may_wait and not ranking.is_known(stretch, self._others()):
            return False
        choices = self._choices(ranking, stretch)
        if choices:
            self._remove_others(ranking)
        first = self._keeper.parts.num_parts
        if self._keeper.keep_ended(choices) is None:
            return False
        self._note_parts(first, choices, stretch.has_steps)
        self._stretches.popleft()
        return True

    def _note_parts(self, first: int, choices: Sequence[Choice], has_steps: bool) -> None:
        """These became parts, from number `first` on."""
        for part, choice in enumerate(choices, start=first):
            self._parts[part] = has_steps, choice.calls
            self._has_neighbours |= choice.launches is None

    def _choices(self, ranking: Ranking, stretch: Stretch) -> list[Choice]:
        """A part for each slow call.

        Nobody knows which replay of a graph belongs to which call: with graphs, all of the stretch
        becomes a part.
        """
        slow = ranking.slow_of(stretch)
        if slow and self._turns.has_captured:
            return [Choice(tuple(slow), None)]
        return [Choice((call,), stretch.launches[call]) for call in slow]

    def _remove_others(self, ranking: Ranking) -> None:
        """Remove the parts whose calls are not among the slowest any more."""
        for part, (has_steps, calls) in list(self._parts.items()):
            if has_steps != ranking.has_steps or ranking.length_s.keys().isdisjoint(calls):
                self._keeper.remove_part(part)
                del self._parts[part]

    def _others(self) -> list[int]:
        keeper = self._keeper
        return [rank for rank in ranks_in_use(keeper.directory) if rank != keeper.rank]

    def _ranking(self) -> Ranking:
        mine = {self._keeper.rank: self._publish()}
        return Ranking(read_published(self._keeper.directory) | mine, self._num_kept)

    def _publish(self) -> Published:
        """Let other ranks know what this one knows; raises CaptureError."""
        latest = self.calls.publish()
        if self._is_closed:
            latest = msgspec.structs.replace(latest, num_ended=_ALL_ENDED)
        if latest != self._latest:
            write_published(self._keeper.directory, self._keeper.rank, latest)
            self._latest = latest
        return latest

    def _note_kept(self, ranking: Ranking) -> None:
        kept = {call for _, calls in self._parts.values() for call in calls}
        slowest = [(call, s) for call, s in ranking.length_s.items() if call in kept]
        if not slowest:
            self._note(
                "no call ended, so none is kept; a call ends with recorder.step(), or where the "
                "kernel that was launched first is launched again"
            )
            return
        self._note(
            _name_slowest(slowest, f"{self.calls.num_ended:,} calls")
            + ("; with the calls next to them, because a graph was replayed" * self._has_neighbours)
        )


def found_slowest(directory: Path, rank: int) -> str:
    """The slowest calls that a rank knew of when it was killed, in words; empty where there is no
    such list."""
    published = read_published(directory)
    if rank not in published:
        return ""
    # Others may have ended fewer calls. None of them publishes more than are to be kept.
    ranking = Ranking(published, max(len(each.calls) for each in published.values()))
    num_ended = published[rank].num_ended
    if not ranking.length_s:
        return "no call had ended that could be kept"
    calls = f"the first {num_ended:,} calls" if num_ended < _ALL_ENDED else "all calls"
    return _name_slowest([*ranking.length_s.items()], calls)


def write_published(directory: Path, rank: int, published: Published) -> None:
    """Let other ranks know; raises CaptureError."""
    path, text = rank_file(directory, rank, "live"), msgspec.json.encode(published)
    with writing(path), os.fdopen(open_plain(path, os.O_RDWR), "r+b") as file:
        file.seek(NUMBERS_BYTES)
        file.write(_checksum(text) + text + b"\0")


def read_published(directory: Path) -> dict[int, Published]:
    """What ranks let others know, by rank."""
    published = {}
    for rank, path in rank_files(directory, "live").items():
        # A disk that has trouble costs what is known of other ranks, and no more.
        with contextlib.suppress(OSError, msgspec.DecodeError):
            content = read_plain(path, LIVE_BYTES)[NUMBERS_BYTES:]
            text = content[_CHECKSUM_BYTES:].partition(b"\0")[0]
            if content.startswith(_checksum(text)):
                published[rank] = _PUBLISHED.decode(text)
    return published


def _checksum(text: bytes) -> bytes:
    return zlib.crc32(text).to_bytes(_CHECKSUM_BYTES, "little")


def _name_slowest(slowest: Sequence[tuple[int, float]], calls: str) -> str:
    """`the 2 slowest of 60 calls: 7 (3.00 ms), 9 (2.00 ms)`."""
    named = ", ".join(f"{call} ({describe_length(s)})" for call, s in slowest[:_MAX_NAMED])
    more = len(slowest) - _MAX_NAMED
    how_many = "slowest" if len(slowest) == 1 else f"{len(slowest)} slowest"
    return f"the {how_many} of {calls}: {named}" + (f" and {more} more" if more > 0 else "")
