"""Arenas that launches use in turn, so that one can be emptied while kernels use another.

    launches ──> active ──switch──> retired ──its launches have ended──> read and wiped ──> free
                   ^                                                                         │
                   └─────────────────────────────────────────────────────────────────────────┘

Launches get the address of the active arena. A captured launch keeps its buffer for all replays, so
it gets the address of a door instead. A door is an arena's head without chunks; its switches say
where the active arena is. They are written on a stream, between two replays.

One thread launches and switches. Any thread may empty a retired arena. Where there is one arena
only, it is always the active one, and its own door.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kprof import abi
from kprof.devices import gpu
from kprof.devices.memory import Memory, Store, allocate
from kprof.errors import ArenaError
from kprof.rank_memory import LAST_TURN, Word
from kprof.recording.arenas.arena import Arena
from kprof.recording.arenas.arena_state import (
    Account,
    ArenaState,
    Handed,
    new_account,
)
from kprof.recording.arenas.ledger import Ledger
from kprof.recording.launches.launch_buffer import LaunchBuffer
from kprof.recording.launches.wanted import EVERYTHING, Wanted

_DOOR_BYTES: Final = abi.CHUNKS_OFFSET + abi.CHUNK_BYTES

_outliving: Final[list[Turns]] = []


@dataclass(frozen=True)
class Layout:
    """How `num_arenas` arenas of `arena_bytes` lie in memory: behind their door, if there are
    several."""

    arena_bytes: int
    num_arenas: int

    @property
    def door_bytes(self) -> int:
        """Where the first arena begins."""
        return _DOOR_BYTES if self.num_arenas > 1 else 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all."""
        return self.door_bytes + self.num_arenas * self.arena_bytes

    def ranges(self) -> list[tuple[int, int]]:
        """The first byte of each arena and the one after its last; the door, if any, comes last."""
        begins = range(self.door_bytes, self.size_bytes, self.arena_bytes)
        door = [(0, self.door_bytes)] if self.door_bytes else []
        return [(begin, begin + self.arena_bytes) for begin in begins] + door


@dataclass(frozen=True)
class Home:
    """Memory for arenas that outlives the process, and an account for each, the door's last; both
    are in the files of `ledger`."""

    memory: Memory
    accounts: Sequence[Account]
    ledger: Ledger


@dataclass
class Room:
    """Where a graph records whole programs: `num_chunks` in every replay, see kprof.abi.

    `store` stores where the next replay has them; a graph may capture `captured_store`. The last
    replay was on `stream`; `is_ready` says whether the place for the next one is stored.
    """

    idx: int
    store: Store
    captured_store: Store
    current_stream: Callable[[], int | None]
    num_chunks: int = 0
    stream: int | None = None
    is_ready: bool = False

    def take(self) -> bool:
        """Whether a replay that begins now on the current stream has its place already."""
        was_ready, self.is_ready = self.is_ready, False
        return was_ready and self.stream == self.current_stream()


@dataclass(frozen=True)
class Used:
    """An arena that launches have used, and nothing has emptied since.

    Its records are of launches below number `end_launch`. It was active from `begin_s` to `end_s`,
    in s since 1970. `has_ended` tells whether all of its launches have ended.
    """

    arena: Arena
    handed: Handed
    end_launch: int
    begin_s: float
    end_s: float
    has_ended: Callable[[], bool] = lambda: True


class Turns:
    """`num_arenas` equal arenas, `size_bytes` in total; raises ArenaError where that is too
    little."""

    __slots__ = ("__dict__", "active", "free", "has_captured", "is_left_out", "is_off", "streams")

    def __init__(
        self,
        size_bytes: int,
        device: str = "cpu",
        wanted: Wanted = EVERYTHING,
        num_arenas: int = 1,
        lines: abi.Lines = abi.NO_LINES,
        home: Home | None = None,
    ) -> None:
        layout = Layout(geometry_of(size_bytes, num_arenas).size_bytes, num_arenas)
        memory = home.memory if home else allocate(layout.size_bytes, device)
        memory.prepare_to_peek()
        ranges = layout.ranges()
        accounts = home.accounts if home else [new_account() for _ in ranges]
        arenas = [
            Arena(end - begin, device, wanted, memory.part(begin, end), lines, account)
            for (begin, end), account in zip(ranges, accounts, strict=True)
        ]
        self.arenas = tuple(arenas[:num_arenas])
        for arena in self.arenas:
            arena.share_limits(self.arenas)
        self.active = self.arenas[0]
        self._num_turns = self.active.account[Word.TURN] = 1
        self._door = arenas[-1]
        if self._door is not self.active:
            self._door.account[Word.TURN] = LAST_TURN
            self._door.send_on(self.active)
        self.device, self.is_off = device, False
        self.is_left_out = False
        self.has_captured, self._num_captures = False, 0
        # Of the graph that is being captured. Filters need the switches.
        self._room: Room | None = None
        self._rooms: list[Room] = []
        self._max_rooms = 0 if wanted.has_filter else abi.NUM_ROOMS
        self._begin_s = time.time()
        self._streams = gpu.Streams(device)
        # Those that launches use.
        self.streams = self._streams.seen
        # The launching thread is about to launch on its current stream.
        self.note_stream = self._streams.note
        self._retired: deque[Used] = deque()
        # Each with what it held before it was emptied.
        self.free: deque[tuple[Arena, ArenaState | None]] = deque(
            (arena, None) for arena in self.arenas[1:]
        )

    def captured_buffer(self, number: int, num_whole: int = 0) -> LaunchBuffer:
        """The buffer for a launch that a graph captures, or one of `num_whole` whole programs."""
        self.has_captured = True
        room = self._room if num_whole else None
        buffer = self.active.switched_buffer(number, claims=room is None)
        buffer = buffer._replace(arena=self._door.address)
        if room is None:
            return buffer
        self._rooms[room.idx :] = [room]
        before, num_chunks = room.num_chunks, -(-num_whole // abi.RECORDS_PER_CHUNK)
        room.num_chunks += num_chunks
        return buffer._replace(
            first_chunk=before, tracks_per_block=room.idx, num_reserved=num_chunks
        )

    def note_capture(self, *, is_end: bool) -> Room | None:
        """A graph is captured from here on: its launches share a room, while there are any. At the
        end of the capture, on the current stream: the graph's room, if it has one.

        The last node of the graph makes replays claim chunks that `announce` has not heard of.
        """
        self._num_captures = max(0, self._num_captures + (-1 if is_end else 1))
        room, self._room, idx = self._room, None, len(self._rooms)
        if not is_end:
            if idx < self._max_rooms and (stores := self._door.room_word(idx)) is not None:
                self._room = Room(idx, *stores, self._streams.current)
            return None
        if room is None or not room.num_chunks:
            return None
        room.captured_store(0)
        return room

    def announce(self, room: Room | None) -> None:
        """A graph is about to be replayed on the current stream."""
        if room is None:
            return
        stream = self._streams.note()
        if room.stream is not None and room.stream != stream:
            # The replay before this one may still read the room.
            gpu.follow(self.device, room.stream)
        room.stream = stream
        self._store_place(room)

    def prepare(self, room: Room) -> bool:
        """The same for a later replay, after one on the current stream: this delays nothing,
        because the GPU is busy. False where too little is left."""
        if self.active.is_short_of(room.num_chunks):
            return False
        if room.stream == self._streams.note():
            self._store_place(room)
            room.is_ready = True
        return True

    def _store_place(self, room: Room) -> None:
        is_out = self.is_off or self.is_left_out
        room.store(abi.LEFT_OUT if is_out else self.active.room(room.num_chunks, self._door))

    def _spoil_rooms(self) -> None:
        """What is prepared no longer holds, also for replays that `announce` does not hear of."""
        for room in self._rooms:
            if room.is_ready and room.stream == self._streams.current():
                room.store(0)
            room.is_ready = False

    def set_off(self, is_off: bool) -> None:
        """Switch recording off or on for later launches on the current stream."""
        self.is_off = is_off
        self._store_off()

    def leave_out(self, is_left_out: bool) -> None:
        """The same for calls that no arena has room for, whatever `set_off` says."""
        self.is_left_out = is_left_out
        self._store_off()

    def _store_off(self) -> None:
        self._spoil_rooms()
        for arena in dict.fromkeys((self._door, *self.arenas)):
            arena.set_off(self.is_off or self.is_left_out)

    def delay(self, delays: np.ndarray) -> None:
        """What later launches are delayed by: a `abi.DELAYS`."""
        for arena in dict.fromkeys((self._door, *self.arenas)):
            arena.delay(delays)

    def outlive_graphs(self) -> None:
        """Make later replays of graphs write nothing, and keep the memory that they would write to
        for as long as the process lives."""
        if self.has_captured:
            self.set_off(True)
            for room in self._rooms:
                room.store(abi.LEFT_OUT)
            self.wait()
            _outliving.append(self)

    def wait(self) -> None:
        """Wait until no kernel runs on the device."""
        self.active.wait()

    def switch(self, end_launch: int) -> bool:
        """Let later launches use a free arena; returns whether there was one.

        Captured launches use it after what the current stream does now. The launches so far have
        numbers below `end_launch`. There is none while a graph is captured, by another thread: the
        graph would capture the events of its stream, and fail when somebody looks at them.
        """
        if not self.free or self._num_captures:
            return False
        arena, state = self.free.popleft()
        if state is not None:
            arena.begin_anew(state)
        handed = self.active.handed()
        self.active.account[Word.END_LAUNCH] = end_launch
        self._num_turns += 1
        arena.account[Word.TURN] = self._num_turns
        self._door.send_on(arena)
        self.note_stream()
        moment = self._streams.moment()
        now_s = time.time()
        self._retired.append(Used(self.active, handed, end_launch, self._begin_s, now_s, moment))
        self.active, self._begin_s = arena, now_s
        self._spoil_rooms()
        return True

    @property
    def begin_s(self) -> float:
        """When launches began to use the oldest arena that nothing has emptied, in s since 1970."""
        return next((each.begin_s for each in self.retired), self._begin_s)

    @property
    def retired(self) -> list[Used]:
        """The arenas that launches used before the active one, the oldest first."""
        return list(self._retired)

    def used(self, end_launch: int) -> list[Used]:
        """All arenas that may hold records, the oldest first."""
        in_use = dict.fromkeys((self.active, self._door))
        return self.retired + [
            Used(arena, arena.handed(), end_launch, self._begin_s, time.time()) for arena in in_use
        ]

    def reset(self, used: Used, state: ArenaState) -> None:
        """Empty an arena while no kernel runs; `state` is what it held."""
        used.arena.reset(state)
        self._spoil_rooms()
        if used in self._retired:
            self._set_free(used, None)
        used.arena.account[Word.WRITTEN_TO] = 0

    def wipe(self, used: Used, state: ArenaState) -> None:
        """Empty a retired arena while kernels use others; `state` is what it held."""
        used.arena.wipe(state)
        self._set_free(used, state)

    def _set_free(self, used: Used, state: ArenaState | None) -> None:
        account = used.arena.account
        account[Word.TURN] = account[Word.END_LAUNCH] = account[Word.WRITTEN_TO] = 0
        self._retired.remove(used)
        self.free.append((used.arena, state))


def geometry_of(size_bytes: int, num_arenas: int) -> abi.ArenaGeometry:
    """How each of `num_arenas` arenas is laid out; raises ArenaError where one holds no chunk."""
    least = abi.CHUNKS_OFFSET + abi.CHUNK_BYTES
    if num_arenas > 1 and size_bytes < num_arenas * least:
        raise ArenaError(
            f"{size_bytes} bytes do not hold a chunk for each of {num_arenas} arenas that are "
            f"used in turn; give at least {num_arenas * least} bytes"
        )
    return abi.ArenaGeometry.for_bytes(size_bytes // num_arenas)
