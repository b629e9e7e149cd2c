"""What outlives a rank that is killed: its arenas, and all that is needed to decode them.

    /dev/shm/kprof-1000-v2/8f2c.../   (without room there: run.kprof.unfinished/)
      rank-00003.arena             what is known of the arenas, the arenas, and launches
    run.kprof.unfinished/
      rank-00003.said              the rank's journal (kprof.capture.journal)

The first is memory that the rank shares with whoever maps it; kprof.rank_memory has the layout. A
rank that ends by itself removes it. Of one that was killed, kprof.recording.finishing.salvage makes
a part of the capture.

Accounts are what the host knows of an arena (see arena_state): it is stored before a launch gets
the arena. `written_to` is set before the arena's events become a part, and taken back
when the arena is empty again. So events are never in two parts, whenever the rank is killed.
"""

from __future__ import annotations

import contextlib
import mmap
import shutil
from collections import deque
from pathlib import Path
from typing import Final

import numpy as np

from kprof.abi import NO_CHUNK
from kprof.capture.journal import Journal, Opened
from kprof.capture.manifest import INT32_MAX
from kprof.capture.names import rank_file, rank_files
from kprof.capture.shared_memory import folders_of, memory_of
from kprof.devices.mapping import SharedFile
from kprof.private import remove_files
from kprof.rank_memory import (
    ACCOUNT_BYTES,
    ACCOUNTS_OFFSET,
    ARENAS_OFFSET,
    LAUNCH,
    LAUNCH_BYTES,
    LEDGER_HEADER,
    LEDGER_MAGIC,
    NUM_ROWS,
    ROWS_BYTES,
    word_of,
)
from kprof.recording.arenas.arena_state import Account

_NUM_FORGOTTEN: Final = word_of(LEDGER_HEADER, "num_forgotten")
_BEGIN_OF_ROWS: Final = word_of(LEDGER_HEADER, "begin_of_rows")
# Memory is taken at once, the disk's pages when they are written.
_MAX_IN_MEMORY: Final = 256 << 20


def launches_in(content: np.ndarray) -> np.ndarray:
    """The rows of the launches in a file of arenas that are in no part, in their order."""
    header = content[: LEDGER_HEADER.itemsize].view(LEDGER_HEADER)[0]
    rows = content[min(int(header["begin_of_rows"]), len(content)) :]
    rows = rows[: len(rows) // LAUNCH_BYTES * LAUNCH_BYTES].view(LAUNCH)
    begin = min(int(header["num_forgotten"]), NO_CHUNK)
    is_whole = (rows["number_plus_1"] > begin) & (rows["number_plus_1"] < NO_CHUNK)
    for size in ("ordinal", "num_blocks", "threads_per_block"):
        is_whole &= (rows[size] >= 0) & (rows[size] <= INT32_MAX)
    whole: np.ndarray = rows[is_whole]
    return whole[np.unique(whole["number_plus_1"], return_index=True)[1]]


class Ledger:
    """The file of one rank, as its recorder writes it; `size_bytes` is that of all arenas.

    `content` is the memory for them. Where the disk refuses a line of the journal, it says nothing
    from there on. Raises OSError where the folder has no room.
    """

    def __init__(
        self, directory: Path, folder: Path, rank: int, size_bytes: int, journal: Journal
    ) -> None:
        remove_ledger(directory, rank)
        self._directory, self._rank = directory, rank
        # By number: those between may be missing.
        self._rows: deque[tuple[int, np.ndarray]] = deque()
        self._unused: list[np.ndarray] = []
        self._end = -(-(ARENAS_OFFSET + size_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._file = SharedFile(rank_file(folder, rank, "arena"), self._end)
        self.content = self._file.content[ARENAS_OFFSET : ARENAS_OFFSET + size_bytes]
        self.address = self._file.address
        self._words = self._file.content.data[:ACCOUNTS_OFFSET].cast("Q")
        self._words[_BEGIN_OF_ROWS] = self._end
        self._is_on = True
        self._say, journal.on_refusal = journal.say, self.stop
        # There is room for launches, too.
        self._add_rows(0)

    @property
    def is_whole(self) -> bool:
        """Whether the file says all that is needed to decode it."""
        return self._is_on

    def accounts(self, number: int) -> list[Account]:
        """The accounts of so many arenas, in the order in which they lie in memory."""
        return accounts_in(self._file.content, number)

    def begin(self, facts: Opened) -> None:
        """From here on the file says enough to be decoded."""
        self._say(facts)
        if self._is_on:
            self._words[0] = LEDGER_MAGIC

    def rows(self, number: int) -> memoryview:
        """Room for the launches from number * NUM_ROWS on, which is made if need be."""
        if self._is_on and self._rows[-1][0] != number:
            try:
                self._add_rows(number)
            except OSError:
                self.stop()
        return self._rows[-1][1].data if self._is_on else memoryview(bytearray(ROWS_BYTES))

    def forget(self, end: int) -> None:
        """The launches below number `end` are in parts, or nobody wants them."""
        self._words[_NUM_FORGOTTEN] = end
        while len(self._rows) > 1 and (self._rows[0][0] + 1) * NUM_ROWS <= end:
            self._unused.append(self._rows.popleft()[1])

    def remove(self) -> None:
        """Remove the file: what it holds is written elsewhere, or lost."""
        self.stop()
        remove_ledger(self._directory, self._rank)

    def stop(self) -> None:
        """The file must not be decoded: it misses something."""
        self._is_on = False
        self._words[0] = 0

    def make_private(self) -> None:
        """This process is a forked child: what it writes is its own."""
        self._file.make_private()
        self._is_on = False

    def _add_rows(self, number: int) -> None:
        if self._unused:
            rows = self._unused.pop()
            rows[:] = 0
        else:
            rows = self._file.grow(self._end, ROWS_BYTES)
            self._end += ROWS_BYTES
        self._rows.append((number, rows))


def accounts_in(content: np.ndarray, number: int) -> list[Account]:
    """The first `number` accounts in a file of arenas; a damaged one may claim too many."""
    ends = range(ACCOUNTS_OFFSET + ACCOUNT_BYTES, ARENAS_OFFSET + 1, ACCOUNT_BYTES)
    return [content.data[end - ACCOUNT_BYTES : end].cast("I") for end in ends[:number]]


def ranks_with_arenas(directory: Path) -> set[int]:
    """The ranks of this host whose arenas outlive them."""
    return {rank for folder in folders_of(directory) for rank in rank_files(folder, "arena")}


def remove_ledger(directory: Path, rank: int) -> None:
    """Remove the file of a rank, if there is one."""
    for folder in folders_of(directory):
        remove_files(folder, rank_file(folder, rank, "arena").name)


def open_ledger(
    directory: Path, rank: int, size_bytes: int, journal: Journal, *, only_in_memory: bool = False
) -> tuple[Ledger | None, str]:
    """A ledger where there is room for it, or None and a reason.

    The reason is empty where nobody would read it: `kprof record`, or a session on this host, makes
    the place. Shared memory comes first, unless less than half of what is free would be left: the
    workload may need it, too, or the arenas are so large that they would fill memory before they
    are used. The disk comes next, unless it has to be memory.
    """
    folder = memory_of(directory)
    if folder is None:
        return None, ""
    size = f"{-(-size_bytes >> 20)} MiB"
    free_bytes = 0
    with contextlib.suppress(OSError):
        free_bytes = shutil.disk_usage(folder).free
    is_roomy = folder != directory and free_bytes >= 2 * size_bytes
    is_roomy &= only_in_memory or size_bytes <= _MAX_IN_MEMORY
    reason = f"/dev/shm has no room for {size} beside as much for others"
    for place in [folder] * is_roomy + [directory] * (not only_in_memory):
        try:
            return Ledger(directory, place, rank, size_bytes, journal), ""
        except OSError as error:
            remove_ledger(directory, rank)
            reason = f"{place} has no room for {size} that outlive it ({error.strerror or error})"
    return None, reason
