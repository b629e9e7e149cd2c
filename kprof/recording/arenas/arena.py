"""The record arena in memory: allocates, prepares, reads and empties it. abi.py has its layout.

The device fills it. The host reserves chunks at any time, but reads the arena only while no kernel
records.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kprof import abi
from kprof.devices.memory import Memory, Store, allocate
from kprof.rank_memory import Word
from kprof.recording.arenas.arena_state import (
    Account,
    ArenaState,
    Handed,
    byte_range,
    new_account,
    read_arena,
    read_control,
)
from kprof.recording.launches.launch_buffer import NO_CHUNK, LaunchBuffer, new_tuple
from kprof.recording.launches.wanted import EVERYTHING, Wanted

assert abi.CONTROL.fields is not None
_LIMIT_OFFSET: Final = abi.CONTROL.fields["chunks_per_cursor"][1]
assert abi.SWITCHES.fields is not None
_IS_OFF_OFFSET: Final = abi.SWITCHES_OFFSET + abi.SWITCHES.fields["is_off"][1]
_ARENA_KIB_OFFSET: Final = abi.SWITCHES_OFFSET + abi.SWITCHES.fields["arena_kib"][1]


def _switches(wanted: Wanted) -> np.ndarray:
    """The switches that exclude all other blocks, warps and tracks; zeros exclude nothing."""
    switches = np.zeros((), abi.SWITCHES)
    if wanted.blocks:
        switches["first_block"], switches["num_blocks"] = wanted.blocks[0], len(wanted.blocks)
    switches["warps"] = sum(1 << warp for warp in wanted.warps)
    switches["sample_mask"] = max(wanted.sample, 1) - 1
    return switches


class Arena:
    """One rank's arena of at most `size_bytes`; raises ArenaError when not even one chunk fits.

    `limits` is what a launch may claim: the chunks of each cursor, and the number of cursors.
    `lines` are where tracks say what they do. `account` is where the host keeps what it handed out
    (see kprof.recording.arenas.ledger).
    """

    __slots__ = ("__dict__", "account", "has_raised_limit", "limits")

    def __init__(
        self,
        size_bytes: int,
        device: str = "cpu",
        wanted: Wanted = EVERYTHING,
        memory: Memory | None = None,
        lines: abi.Lines = abi.NO_LINES,
        account: Account | None = None,
    ) -> None:
        self.account = new_account() if account is None else account
        self.geometry = abi.ArenaGeometry.for_bytes(size_bytes)
        self._memory = memory or allocate(self.geometry.size_bytes, device)
        self.address: int = self._memory.address
        self.limits: tuple[int, int] = self.geometry.chunks_per_cursor, self.geometry.num_cursors
        # Whether cursors may hand out everything that is not reserved.
        self._is_limit_highest = False
        # Whether launches have to find a higher limit in the arena than they would.
        self.has_raised_limit = False
        # The fields of a buffer that reserves nothing, behind address and number; empty until
        # `open`.
        self.claims: tuple[int, ...] = ()
        self._siblings: tuple[Arena, ...] = (self,)
        self._wanted = wanted
        self._switches = _switches(wanted)
        # Graphs may claim with it at any time.
        self._least_captured_limit = abi.NO_CHUNK
        self._lines = lines
        self.account[Word.LIMIT] = self.limits[0]
        self._begin_account()
        self._memory.write(0, self._initial_head())

    def share_limits(self, siblings: tuple[Arena, ...]) -> None:
        """Raise limits only together with these arenas: a launch may be moved from one to another
        with its limits."""
        self._siblings = siblings

    def launch_buffer(self, number: int, num_blocks: int, tracks_per_block: int) -> LaunchBuffer:
        """The buffer for launch `number`.

        If `tracks_per_block` is 0 or too few chunks are left, nothing is reserved and its tracks
        claim all their chunks.
        """
        num_tracks = num_blocks * tracks_per_block
        if num_tracks:
            return self.reserved_buffer(number, tracks_per_block, num_tracks)
        return new_tuple(LaunchBuffer, (self.address, number) + (self.claims or self.open()))

    def reserved_buffer(self, number: int, tracks_per_block: int, num_tracks: int) -> LaunchBuffer:
        """The buffer for a launch that reserves a chunk for each track, if so many are left."""
        first_chunk = self._reserve(num_tracks)
        if self.has_raised_limit:
            self._store_limit()
        if first_chunk == NO_CHUNK:
            tracks_per_block = num_tracks = 0
        reserved = self.address, number, first_chunk, tracks_per_block, num_tracks
        return new_tuple(LaunchBuffer, reserved + self.limits + (0, 0))

    def sharing_buffer(self, number: int, num_blocks: int) -> LaunchBuffer:
        """The buffer for a launch whose blocks have one event each, and share chunks."""
        return self.launch_buffer(number, -(-num_blocks // abi.RECORDS_PER_CHUNK), 1)

    def filtered_buffer(self, number: int, num_blocks: int, tracks_per_block: int) -> LaunchBuffer:
        """The buffer for a launch of which the arena's filter wants some tracks.

        They get the reserved chunks, and tracks without one are left out. Where that does not say
        which tracks are wanted, or too few chunks are left, tracks look at the switches.
        """
        reserved = self._wanted.reserved_of(num_blocks, tracks_per_block)
        if reserved is None or not num_blocks * tracks_per_block:
            return self.switched_buffer(number)
        first_block, num_blocks, tracks_per_block = reserved
        buffer = self.launch_buffer(number, num_blocks, tracks_per_block)
        if num_blocks and not buffer.num_reserved:
            return self.switched_buffer(number)
        return buffer._replace(options=abi.ONLY_RESERVED, first_block=first_block)

    def switched_buffer(self, number: int, *, claims: bool = True) -> LaunchBuffer:
        """The buffer for a launch that reads the arena's switches: its tracks claim all their
        chunks, unless `claims` is false.

        Stores nothing on the device: if a graph captured the launch, every replay would store it
        again.
        """
        for arena in self._siblings if claims else ():
            arena._open_to_claims()
        for arena in self._siblings:
            arena._least_captured_limit = min(arena._least_captured_limit, self.limits[0])
        reserved = NO_CHUNK, 0, 0
        return LaunchBuffer(self.address, number, *reserved, *self.limits, abi.LOOKS_AT_SWITCHES)

    def set_off(self, is_off: bool) -> None:
        """Switch recording off or on for later launches on the current stream."""
        self._memory.store_u32(_IS_OFF_OFFSET, int(is_off))
        self._switches["is_off"] = is_off

    def delay(self, delays: np.ndarray) -> None:
        """What later launches are delayed by: a `abi.DELAYS`."""
        self._memory.write(abi.DELAYS_OFFSET, delays.reshape(1).view(np.uint8))

    def send_on(self, arena: Arena) -> None:
        """Make later launches on the current stream that look at this arena's switches use another
        one, which lies behind it."""
        distance_kib = (arena.address - self.address) // 1024
        self._memory.store_u32(_ARENA_KIB_OFFSET, distance_kib)
        self._switches["arena_kib"] = distance_kib

    def room_word(self, idx: int) -> tuple[Store, Store] | None:
        """Functions that store where a graph records next, see kprof.devices.memory."""
        return self._memory.word(abi.ROOMS_OFFSET + idx * abi.ROOM.itemsize)

    def room(self, num_chunks: int, door: Arena) -> int:
        """Reserves `num_chunks` chunks for a replay of a graph; the number for its room, see
        kprof.abi. Programs claim chunks where nothing is left to reserve, because others do."""
        first = self._reserve(num_chunks, else_claim=False)
        if first == NO_CHUNK and self.account[Word.HAS_CLAIMING]:
            return 0
        place = NO_CHUNK if first == NO_CHUNK else first + 1
        return place | (self.address - door.address) // 1024 << 32

    def is_short_of(self, num_chunks: int) -> bool:
        """Whether so many can only be reserved once what is reserved was read."""
        first, (limit, num_cursors) = self.account[Word.FIRST_RESERVED], self.limits
        return limit * num_cursors + num_chunks > first < self.geometry.num_chunks

    @property
    def share_wanted(self) -> float:
        """How much of the arena launches wanted to reserve, without a look at the device."""
        return self.account[Word.NUM_WANTED] / self.geometry.num_chunks

    def _reserve(self, num_chunks: int, *, else_claim: bool = True) -> int:
        """The first of `num_chunks` chunks for one launch.

        NO_CHUNK if fewer are left: the launch then claims its chunks, and `limits` lets it have
        everything that is not reserved, unless `else_claim` is false.
        """
        account = self.account
        num_wanted = account[Word.NUM_WANTED] + num_chunks
        account[Word.NUM_WANTED] = num_wanted if num_wanted < NO_CHUNK else NO_CHUNK
        first = account[Word.FIRST_RESERVED] - num_chunks
        limit, num_cursors = self.limits
        if first < limit * num_cursors:
            if else_claim and not self._is_limit_highest:
                self._raise_limit()
            return NO_CHUNK
        account[Word.FIRST_RESERVED] = first
        account[Word.NUM_RESERVING] += 1
        return first

    def wait(self) -> None:
        """Wait until no kernel runs on the device."""
        self._memory.wait()

    def state(self) -> ArenaState:
        """What is in use, read from the head of the arena alone."""
        return read_control(self._memory.read(0, abi.CHUNKS_OFFSET), self.handed())

    def read(self, handed: Handed | None = None) -> tuple[ArenaState, np.ndarray]:
        """What is in use, and the bytes of all chunks in its `ranges`.

        `handed` is what the host had handed out when the arena was last used, by default by now.
        """
        return read_arena(self._memory.read, handed or self.handed())

    def snapshot(self, handed: Handed | None = None) -> tuple[ArenaState, np.ndarray]:
        """Like `read`, but does not wait for running kernels, which may never end."""
        return read_arena(self._memory.peek, handed or self.handed())

    def snapshot_of_state(self, handed: Handed | None = None) -> ArenaState:
        """The head alone, without waiting for running kernels."""
        return read_control(self._memory.peek(0, abi.CHUNKS_OFFSET), handed or self.handed())

    def reset(self, state: ArenaState) -> None:
        """Empty the arena: zero what was used and reset the cursors."""
        for used in state.ranges():
            self._memory.clear(*byte_range(used))
        for begin, data in self._head_without_switches():
            self._memory.write(begin, data)
        self.begin_anew(state)

    def wipe(self, state: ArenaState) -> None:
        """The same for another thread while kernels use other arenas; `begin_anew` must follow
        before launches get this one."""
        for used in state.ranges():
            self._memory.wipe(*byte_range(used))
        for begin, data in self._head_without_switches():
            self._memory.poke(begin, data)

    def begin_anew(self, state: ArenaState) -> None:
        """Begin the account of an arena that was emptied; `state` is what it held.

        Keeps the limit, because a graph launches again with the limits that it was captured with.
        If events were dropped, or nearly so, chunks that nobody wanted to reserve can be claimed
        from now on.
        """
        self._begin_account()
        if any(state.dropped_of_region) or state.share_claimed >= 0.5:
            num_wanted = min(state.handed.num_reserved_wanted, self.geometry.num_chunks)
            self._raise_limit(self.geometry.num_chunks - num_wanted)
            self._store_limit()
            self.account[Word.LEAST_LIMIT] = min(self.limits[0], self._least_captured_limit)

    def _begin_account(self) -> None:
        for arena in self._siblings:
            arena._is_limit_highest = False
        self.claims = ()
        self.account[Word.FIRST_RESERVED] = self.geometry.num_chunks
        for word in (Word.NUM_WANTED, Word.HAS_CLAIMING, Word.NUM_RESERVING):
            self.account[word] = 0
        self.account[Word.LEAST_LIMIT] = min(self.limits[0], self._least_captured_limit)

    def _initial_head(self) -> np.ndarray:
        self.account[Word.STORED_LIMIT] = self.limits[0]
        self.has_raised_limit = False
        return abi.initial_control(self.geometry, self.limits[0], self._switches, self._lines)

    def _head_without_switches(self) -> list[tuple[int, np.ndarray]]:
        """A store to the switches may be under way, and launches may look at them and at the delays
        and rooms behind them."""
        head = self._initial_head()
        end = abi.CURSORS_OFFSET
        return [(0, head[: abi.SWITCHES_OFFSET]), (end, head[end:])]

    def _raise_limit(self, end: int = NO_CHUNK) -> None:
        """Let cursors hand out everything before chunk `end` that is not reserved.

        Earlier launches keep their limits.
        """
        limit, num_cursors = self.limits
        for arena in self._siblings if end == NO_CHUNK else ():
            arena._is_limit_highest = True
        end = min(end, *(arena.account[Word.FIRST_RESERVED] for arena in self._siblings))
        if (highest := end // num_cursors) > limit:
            for arena in self._siblings:
                arena.limits, arena.claims = (highest, num_cursors), ()
                arena.has_raised_limit = True
                arena.account[Word.LIMIT] = highest

    def _open_to_claims(self) -> None:
        """Let launches without reservations claim everything that is not reserved."""
        if not self.account[Word.HAS_CLAIMING]:
            self.account[Word.HAS_CLAIMING] = 1
            self._raise_limit()

    def open(self) -> tuple[int, ...]:
        """Make `claims`."""
        self._open_to_claims()
        self._store_limit()
        self.claims = (NO_CHUNK, 0, 0, *self.limits, 0, 0)
        return self.claims

    def _store_limit(self) -> None:
        """Store the limit in the arena, where launches read it that were given two numbers only."""
        if self.has_raised_limit:
            self._memory.store_u32(_LIMIT_OFFSET, self.limits[0])
            self.account[Word.STORED_LIMIT] = self.limits[0]
            self.has_raised_limit = False

    def handed(self) -> Handed:
        """What launches were handed out since the arena was empty."""
        switches = self._switches.tobytes()
        return Handed.of_account(self.geometry, self.account, switches, self._lines)
