"""Arenas that launches use in turn, so that one can be emptied while kernels run.

    launches ──> active ──switch──> retired ──its launches have ended──> read and wiped ──> free
                   ^                                                                         │
                   └─────────────────────────────────────────────────────────────────────────┘

Launches get the address of the active arena. A captured launch keeps its buffer, so it gets the
address of a door instead: a head without chunks whose switches say where the active arena lies. The
door is moved on a stream, between two replays.

One thread launches and switches; any thread may empty what is retired. With one arena there are no
turns: it is always active, and its own door.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kprof import abi
from kprof.devices import gpu
from kprof.devices.memory import allocate
from kprof.errors import ArenaError
from kprof.recording.arena import Arena
from kprof.recording.arena_state import ArenaState, Handed
from kprof.recording.launch_buffer import LaunchBuffer
from kprof.recording.wanted import EVERYTHING, Wanted

_DOOR_BYTES: Final = abi.CHUNKS_OFFSET + abi.CHUNK_BYTES

_outliving: Final[list[Turns]] = []


@dataclass(frozen=True)
class Used:
    """An arena with records of the first `num_added` launches that were added, whose numbers are
    below `end_launch`.

    It was the active one from `begin_s` to `end_s`, in s since 1970. `has_ended` tells whether all
    launches have ended.
    """

    arena: Arena
    handed: Handed
    num_added: int
    end_launch: int
    begin_s: float
    end_s: float
    has_ended: Callable[[], bool] = lambda: True


class Turns:
    """`num_arenas` equal arenas of `size_bytes` together; raises ArenaError where that is too
    little."""

    def __init__(
        self,
        size_bytes: int,
        device: str = "cpu",
        wanted: Wanted = EVERYTHING,
        num_arenas: int = 1,
    ) -> None:
        geometry = geometry_of(size_bytes, num_arenas)
        door_bytes = _DOOR_BYTES if num_arenas > 1 else 0
        memory = allocate(door_bytes + num_arenas * geometry.size_bytes, device)
        memory.prepare_to_peek()
        self.arenas = tuple(
            Arena(geometry.size_bytes, device, wanted, memory.part(begin, end))
            for k in range(num_arenas)
            for begin in [door_bytes + k * geometry.size_bytes]
            for end in [begin + geometry.size_bytes]
        )
        for arena in self.arenas:
            arena.share_limits(self.arenas)
        self.active = self.arenas[0]
        self._door = self.active
        if door_bytes:
            self._door = Arena(door_bytes, device, wanted, memory.part(0, door_bytes))
            self._door.send_on(self.active)
        self._has_captured = False
        self._begin_s = time.time()
        self._streams = gpu.Streams(device)
        self._retired: deque[Used] = deque()
        # With what they held before they were wiped.
        self._free: deque[tuple[Arena, ArenaState | None]] = deque(
            (arena, None) for arena in self.arenas[1:]
        )

    def captured_buffer(self, number: int) -> LaunchBuffer:
        """What a launch is given that a graph captures."""
        self._has_captured = True
        return self.active.switched_buffer(number)._replace(arena=self._door.address)

    def set_off(self, is_off: bool) -> None:
        """Switch recording off or on for later launches on the current stream."""
        for arena in dict.fromkeys((self._door, *self.arenas)):
            arena.set_off(is_off)

    def outlive_graphs(self) -> None:
        """Graphs may be replayed for as long as the process lives: they write nothing from here
        on, and their memory stays."""
        if self._has_captured:
            self.set_off(True)
            self.wait()
            _outliving.append(self)

    def wait(self) -> None:
        """Return when no kernel is running on the device any more."""
        self.active.wait()

    def note_stream(self) -> None:
        """The thread that launches is about to launch on its current stream."""
        self._streams.note()

    def switch(self, num_added: int, end_launch: int) -> bool:
        """Let later launches use a free arena; False where there is none.

        Captured launches follow on the current stream. So many launches were added so far, with
        numbers below `end_launch`.
        """
        if not self._free:
            return False
        arena, state = self._free.popleft()
        if state is not None:
            arena.begin_anew(state)
        handed = self.active.handed()
        self._door.send_on(arena)
        self.note_stream()
        moment = self._streams.moment()
        now_s = time.time()
        self._retired.append(
            Used(self.active, handed, num_added, end_launch, self._begin_s, now_s, moment)
        )
        self.active, self._begin_s = arena, now_s
        return True

    @property
    def retired(self) -> list[Used]:
        """The arenas that were used before, the oldest first."""
        return list(self._retired)

    def used(self, num_added: int, end_launch: int) -> list[Used]:
        """All arenas that may hold records, the oldest first; see `switch` for the numbers."""
        in_use = dict.fromkeys((self.active, self._door))
        return self.retired + [
            Used(arena, arena.handed(), num_added, end_launch, self._begin_s, time.time())
            for arena in in_use
        ]

    def reset(self, used: Used, state: ArenaState) -> None:
        """An arena was read, and no kernel is running: empty it.

        `state` is what it held.
        """
        used.arena.reset(state)
        if used in self._retired:
            self._retired.remove(used)
            self._free.append((used.arena, None))

    def wipe(self, used: Used, state: ArenaState) -> None:
        """The same of a retired arena while kernels use others."""
        used.arena.wipe(state)
        self._retired.remove(used)
        self._free.append((used.arena, state))


def geometry_of(size_bytes: int, num_arenas: int) -> abi.ArenaGeometry:
    """Of each of `num_arenas` arenas; raises ArenaError where one would hold no chunk."""
    least = abi.CHUNKS_OFFSET + abi.CHUNK_BYTES
    if num_arenas > 1 and size_bytes < num_arenas * least:
        raise ArenaError(
            f"{size_bytes} bytes do not hold a chunk for each of {num_arenas} arenas that are "
            f"used in turn; give at least {num_arenas * least} bytes"
        )
    return abi.ArenaGeometry.for_bytes(size_bytes // num_arenas)
