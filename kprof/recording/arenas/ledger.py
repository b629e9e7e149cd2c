"""What outlives a rank that is killed: its arenas, and all that is needed to decode them.

    /dev/shm/kprof-1000-v2/8f2c.../   (without room there: run.kprof.unfinished/)
      rank-00003.arena             what is known of the arenas, and the arenas
      rank-00003.launches-00000    launches
    run.kprof.unfinished/
      rank-00003.said              the rank's journal (kprof.capture.journal)

The first two are memory that the rank shares with whoever maps them; kprof.rank_memory has the
layout. A rank that ends by itself removes
them. Of one that was killed, kprof.recording.finishing.salvage makes a part of the capture.

Accounts are what the host knows of an arena (see arena_state): it is stored before a launch gets
the arena. `written_to` is set before the arena's events become a part, and taken back
when the arena is empty again. So events are never in two parts, whenever the rank is killed.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import deque
from pathlib import Path
from typing import Final

import numpy as np

from kprof.abi import NO_CHUNK
from kprof.capture.journal import Facts, Journal
from kprof.capture.manifest import INT32_MAX
from kprof.capture.names import rank_file, rank_files
from kprof.capture.shared_memory import memory_of
from kprof.devices.mapping import SharedFile
from kprof.private import read_plain, remove_files
from kprof.rank_memory import (
    ACCOUNT_BYTES,
    ACCOUNTS_OFFSET,
    ARENAS_OFFSET,
    LAUNCH,
    LEDGER_HEADER,
    LEDGER_MAGIC,
    ROWS_BYTES,
    ROWS_PER_FILE,
    word_of,
)
from kprof.recording.arenas.arena_state import Account

_NUM_FORGOTTEN: Final = word_of(LEDGER_HEADER, "num_forgotten")
# Memory is taken at once, the disk's pages when they are written.
_MAX_IN_MEMORY: Final = 256 << 20


def launches_path(folder: Path, rank: int, number: int) -> Path:
    """A file of launches."""
    return rank_file(folder, rank, f"launches-{number:05d}")


def read_launches(folder: Path, rank: int, begin: int) -> np.ndarray:
    """The rows of launches from number `begin` on."""
    prefix = rank_file(folder, rank, "launches-").name
    names = (path.name.removeprefix(prefix) for path in folder.glob(prefix + "*"))
    found = [np.empty(0, LAUNCH)]
    for number in sorted(int(name) for name in names if name.isdecimal()):
        content = read_plain(launches_path(folder, rank, number))
        rows = np.frombuffer(content, LAUNCH, len(content) // LAUNCH.itemsize)
        found.append(rows[max(0, begin - number * ROWS_PER_FILE) :])
    rows = np.concatenate(found)
    is_whole = (rows["number_plus_1"] > 0) & (rows["number_plus_1"] < NO_CHUNK)
    for size in ("ordinal", "num_blocks", "threads_per_block"):
        is_whole &= (rows[size] >= 0) & (rows[size] <= INT32_MAX)
    whole: np.ndarray = rows[is_whole]
    return whole


class Ledger:
    """The files of one rank, as its recorder writes them; `size_bytes` is that of all arenas.

    `content` is the memory for them. Where the disk refuses a line of the journal, they say nothing
    from there on. Raises OSError where the folder has no room.
    """

    def __init__(
        self, directory: Path, folder: Path, rank: int, size_bytes: int, journal: Journal
    ) -> None:
        remove_ledger(directory, rank)
        self._directory, self._folder, self._rank = directory, folder, rank
        # By number: those between may be missing.
        self._files: deque[tuple[int, SharedFile]] = deque()
        self._arena = SharedFile(rank_file(folder, rank, "arena"), ARENAS_OFFSET + size_bytes)
        self.content = self._arena.content[ARENAS_OFFSET:]
        self.address = self._arena.address
        self._words = self._arena.content.data[:ACCOUNTS_OFFSET].cast("Q")
        self._is_on = True
        self._say, journal.on_refusal = journal.say, self.stop
        # There is room for launches, too.
        self._add_file(0)

    @property
    def is_whole(self) -> bool:
        """Whether the files say all that is needed to decode them."""
        return self._is_on

    def accounts(self, number: int) -> list[Account]:
        """The accounts of so many arenas, in the order in which they lie in memory."""
        return accounts_in(self._arena.content, number)

    def begin(self, facts: Facts) -> None:
        """From here on the files say enough to be decoded."""
        self._say(facts)
        if self._is_on:
            self._words[0] = LEDGER_MAGIC

    def rows(self, number: int) -> memoryview:
        """The rows of a file of launches, which is made if need be."""
        if self._is_on and self._files[-1][0] != number:
            try:
                self._add_file(number)
            except OSError:
                self.stop()
        return self._files[-1][1].content.data if self._is_on else memoryview(bytearray(ROWS_BYTES))

    def forget(self, end: int) -> None:
        """The launches below number `end` are in parts, or nobody wants them."""
        self._words[_NUM_FORGOTTEN] = end
        while len(self._files) > 1 and (self._files[0][0] + 1) * ROWS_PER_FILE <= end:
            self._files.popleft()[1].remove()

    def remove(self) -> None:
        """Remove the files: what they hold is written elsewhere, or lost."""
        self.stop()
        remove_ledger(self._directory, self._rank)

    def stop(self) -> None:
        """The files must not be decoded: they miss something."""
        self._is_on = False
        self._words[0] = 0

    def make_private(self) -> None:
        """This process is a forked child: what it writes is its own."""
        for file in (self._arena, *(file for _, file in self._files)):
            file.make_private()

    def _add_file(self, number: int) -> None:
        path = launches_path(self._folder, self._rank, number)
        self._files.append((number, SharedFile(path, ROWS_BYTES)))


def accounts_in(content: np.ndarray, number: int) -> list[Account]:
    """The first `number` accounts in a file of arenas; a damaged one may claim too many."""
    ends = range(ACCOUNTS_OFFSET + ACCOUNT_BYTES, ARENAS_OFFSET + 1, ACCOUNT_BYTES)
    return [content.data[end - ACCOUNT_BYTES : end].cast("I") for end in ends[:number]]


def ranks_with_arenas(directory: Path) -> set[int]:
    """The ranks of this host whose arenas outlive them."""
    folders = filter(None, (memory_of(directory), directory))
    return {rank for folder in folders for rank in rank_files(folder, "arena")}


def remove_ledger(directory: Path, rank: int) -> None:
    """Remove the files of a rank, if there are any."""
    names = [f"rank-{rank:05d}.{kind}" for kind in ("arena", "launches-*")]
    for folder in filter(None, (memory_of(directory), directory)):
        remove_files(folder, *names)


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
