"""What a rank shows to whoever watches it for hangs: its launches and long waits, in memory that
kernels write and that outlives the process, and its Python stacks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kprof.abi import NO_LINES, RECORD_BYTES, STATE_LINE, WAIT_LINE, Lines
from kprof.capture.shared_memory import memory_of
from kprof.devices import gpu
from kprof.devices.memory import allocate
from kprof.errors import KprofError
from kprof.hangs.announced import (
    LINES_BYTES,
    NUM_TRACKS,
    ArenaChunks,
    open_spans,
)
from kprof.hangs.lines import (
    WaitsWriter,
    tracks_in,
    write_answer,
)
from kprof.hangs.stacks import open_stacks
from kprof.hangs.watch import is_wanted
from kprof.rank_memory import HANG_BYTES, LINES_OFFSET, NUM_LINES
from kprof.recording.endings import complaints
from kprof.recording.rank import saver

if TYPE_CHECKING:
    from kprof.devices.memory import Memory
    from kprof.recording.retention.keeping import Keeper

_LINES_BYTES: Final = NUM_LINES * WAIT_LINE.itemsize
_CLAIMS_BYTES: Final = NUM_LINES * 4
assert _LINES_BYTES % RECORD_BYTES == 0
# Why the lines of a rank are not in shared memory of all.
_ON_DISK: Final = (
    "/dev/shm is too small or cannot be written, so waits that last long are in a file on the disk"
)
_COPIED: Final = (
    "its GPU cannot write to memory that other processes read, so waits that last long are copied "
    "when kprof looks for a hang, and are lost with the process"
)


@functools.cache
def _complain_once(text: str, directory: Path) -> None:
    """A recorder is tried again and again with smaller arenas."""
    del directory
    complaints.complain(text)


class Waits:
    """The waits of a rank.

    `lines` are for kernels: none where nobody watches this recording or there is no room. `note` is
    given a sentence in that case.
    """

    def __init__(
        self,
        directory: Path,
        rank: int,
        world_size: int,
        device: str,
        note: Callable[[str], None],
    ) -> None:
        self.lines = NO_LINES
        self._directory, self._rank, self._note = directory, rank, note
        self._writer: WaitsWriter | None = None
        self._copied: Memory | None = None
        # State lines of announced spans, and behind them the claims on lines of waits.
        self._announced: Memory | None = None
        self._is_host = device == "cpu"
        if not memory_of(directory):
            return
        try:
            self._writer = WaitsWriter(directory, rank, world_size, saver.signal_here())
        except OSError as error:
            self._say(
                f"rank {rank} does not say which waits last long: neither /dev/shm nor {directory} "
                f"has room ({error.strerror or error}); make /dev/shm larger"
            )
            return
        if self._is_host:
            self._writer.say_launches_return_when_done()
        self._announced = allocate(LINES_BYTES + _CLAIMS_BYTES, device)
        self._announced.prepare_to_peek()
        address = self._announced.address
        self.lines = Lines(
            self._address(self._writer, device),
            NUM_LINES,
            address,
            NUM_TRACKS,
            address + LINES_BYTES,
        )
        if self._copied is not None:
            self._say(f"rank {rank}: {_COPIED}")
        elif not self._writer.is_in_memory:
            self._say(f"rank {rank}: {_ON_DISK}")

    def _say(self, text: str) -> None:
        self._note(text)
        _complain_once(text, self._directory)

    def open_stacks(self) -> None:
        """Let others ask this process for its Python stacks, if it is watched."""
        if is_wanted():
            open_stacks(self._directory, self._rank)

    def listen(self) -> None:
        """Let others ask this process for its Python stacks and for what it recorded."""
        saver.start()
        if self._writer is not None:
            self._writer.say_saves_on(saver.signal_here())
        if not is_wanted():
            open_stacks(self._directory, self._rank)

    def _address(self, writer: WaitsWriter, device: str) -> int:
        """The address of the lines for kernels."""
        if device == "cpu":
            return writer.address
        try:
            begin = gpu.register_host_memory(writer.begin_address, HANG_BYTES, device)
            return begin + LINES_OFFSET
        except (KprofError, RuntimeError, OSError):
            # The device cannot write to it: it has lines of its own, which are copied when asked.
            self._copied = allocate(_LINES_BYTES, device)
            self._copied.prepare_to_peek()
            return self._copied.address

    @property
    def recent_launches(self) -> memoryview | None:
        """Memory for the latest launches; None where nobody watches."""
        return None if self._writer is None else self._writer.recent

    def note_finished(self, num_launches: int) -> None:
        """The first so many launches have ended."""
        if self._writer is not None:
            self._writer.note_finished(num_launches)

    def explain_timeout(self, waited_s: float) -> str:
        """Why kernels have given up, where that is known."""
        from kprof.hangs.look import explain_timeout

        try:
            return explain_timeout(self._directory, waited_s)
        except (KprofError, OSError) as error:
            return f"who else waits is not known ({error})"

    def save(self, keeper: Keeper, ticks_per_cycle: float = 1.0) -> None:
        """Save what was recorded, and say which blocks have begun, and which announced spans."""
        if self._writer is None or self._announced is None:
            keeper.save()
            return
        self._refresh()
        # Before the records: a span of which there is none yet has not ended.
        lines = np.asarray(self._announced.peek(0, LINES_BYTES)).view(STATE_LINE)
        lines = lines[lines["start_and_region"] != 0]
        tracks: list[np.ndarray] = []
        arenas: list[ArenaChunks] = []

        def look(address: int, chunks: np.ndarray) -> None:
            tracks.append(tracks_in(chunks))
            if len(lines):
                arenas.append((address, chunks))

        keeper.save(look)
        spans = open_spans(lines, arenas, ticks_per_cycle)
        write_answer(self._directory, self._rank, tracks, spans)

    def _refresh(self) -> None:
        """Copy the lines of a device that cannot write to shared memory."""
        if self._writer is not None and self._copied is not None:
            self._writer.write_lines(np.asarray(self._copied.peek(0, _LINES_BYTES)))
