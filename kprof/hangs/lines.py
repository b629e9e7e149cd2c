"""The memory in which a rank says what it launches and which of its waits last long.

    /dev/shm/kprof-1000-v2/8f2c.../      see kprof.capture.shared_memory
      rank-00003.waits       a file per rank, made and mapped by its recorder: kprof.rank_memory
      rank-00003.arena       see kprof.recording.arenas.ledger
    run.kprof.unfinished/
      rank-00003.waits       the same where it has no room in shared memory

It outlives the process that writes it: whoever reads it needs no GPU, no interpreter lock and no
answer. A GPU that cannot write to such a file has lines of its own, which are copied when somebody
asks (Waits.save).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import numpy as np

from kprof.abi import CHUNK_BYTES, CHUNK_CLAIMED, CHUNK_HEADER, CHUNK_HEADER_BYTES, WAIT_LINE
from kprof.capture.journal import Answer, Kernel, said, say
from kprof.capture.names import rank_file, rank_files
from kprof.capture.shared_memory import folders_of, memory_of
from kprof.devices.mapping import SharedFile
from kprof.errors import CaptureError
from kprof.private import read_plain, remove
from kprof.rank_memory import (
    HANG_BYTES,
    HANG_HEADER,
    HANG_MAGIC,
    LINES_OFFSET,
    NUM_LINES,
    NUM_RECENT,
    RECENT,
    RECENT_OFFSET,
    word_of,
)

# What does not change as long as a wait is open.
_SAYS_WHO: Final = ("start_ticks", "region", "payload", "launch", "block", "warp", "wanted")
_NUM_FINISHED: Final = word_of(HANG_HEADER, "num_finished")
_RETURNS_WHEN_DONE: Final = word_of(HANG_HEADER, "returns_when_done")
_SAVE_SIGNAL: Final = word_of(HANG_HEADER, "save_signal")


def blocks_begun(answer: Answer) -> dict[int, frozenset[int]]:
    """The blocks that had begun, by launch."""
    pairs = rows_in(answer.tracks, np.dtype("(2,)<u4"))
    return {
        int(launch): frozenset(pairs[pairs[:, 0] == launch, 1].tolist())
        for launch in np.unique(pairs[:, 0])
    }


def rows_in(content: bytes, kind: np.dtype) -> np.ndarray:
    """The whole rows."""
    return np.frombuffer(content, kind, len(content) // kind.itemsize)


def headers_in(chunks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The headers of the chunks that tracks have claimed, and which chunks those are.

    The words of a header may arrive in any order: without them all it is not there yet. Chunk 0 is
    the first, if it is here.
    """
    headers = np.ascontiguousarray(chunks.reshape(-1, CHUNK_BYTES)[:, :CHUNK_HEADER_BYTES])
    headers = headers.view(CHUNK_HEADER)[:, 0]
    is_claimed = (headers["flags"] & CHUNK_CLAIMED) != 0
    is_claimed &= headers["anchor_realtime_ticks"] != 0
    is_claimed[1:] &= headers["chunk_idx"][1:] != 0
    return headers[is_claimed], is_claimed


def tracks_in(chunks: np.ndarray) -> np.ndarray:
    """Launch and block of the tracks in the bytes of chunks: shape (n, 2)."""
    headers, _ = headers_in(chunks)
    return np.unique(np.stack([headers["launch"], headers["block"]], axis=1), axis=0)


def write_answer(directory: Path, rank: int, tracks: list[np.ndarray], spans: np.ndarray) -> None:
    """Say which blocks had begun, as `tracks_in` found them, and which announced spans are open;
    nothing where the disk refuses."""
    pairs = np.concatenate([np.empty((0, 2), np.uint32), *tracks]).astype("<u4")
    answer = Answer(pairs.tobytes(), spans.tobytes())
    # What hangs says the same again and again.
    if answer != read_answer(directory, rank):
        with contextlib.suppress(CaptureError):
            say(directory, rank, answer)


def read_answer(directory: Path, rank: int) -> Answer:
    """What the rank said last; nothing where it said nothing, or the line is damaged."""
    return next(reversed(said(directory, rank, Answer)), Answer())


def _new_file(directory: Path, rank: int) -> tuple[SharedFile, bool]:
    """New memory for the lines of a rank, and whether it is shared memory."""
    folder, on_disk = memory_of(directory), rank_file(directory, rank, "waits")
    remove(on_disk)
    if folder is not None:
        with contextlib.suppress(OSError):
            return SharedFile(rank_file(folder, rank, "waits"), HANG_BYTES), folder != directory
    return SharedFile(on_disk, HANG_BYTES), False


class WaitsWriter:
    """A rank's file, mapped by its recorder. `address` is that of its lines in this process."""

    def __init__(self, directory: Path, rank: int, world_size: int, save_signal: int = 0) -> None:
        """`save_signal` makes this process save what it has recorded (0: nothing does).

        `is_in_memory` tells whether its lines are in shared memory; otherwise they are in a file on
        the disk. Raises OSError where there is no room on either.
        """
        file, self.is_in_memory = _new_file(directory, rank)
        header = file.content[: HANG_HEADER.itemsize].view(HANG_HEADER)
        header["rank"], header["world_size"], header["pid"] = rank, world_size, os.getpid()
        header["save_signal"] = save_signal
        header["magic"] = HANG_MAGIC
        self._words = file.content.data[:RECENT_OFFSET].cast("Q")
        self.recent = file.content.data[RECENT_OFFSET:LINES_OFFSET]
        self._lines = file.content[LINES_OFFSET:]
        self.begin_address, self.address = file.address, file.address + LINES_OFFSET

    def say_saves_on(self, signal_number: int) -> None:
        """This signal makes this process save what it has recorded."""
        self._words[_SAVE_SIGNAL] = signal_number

    def say_launches_return_when_done(self) -> None:
        """All launches but the last have ended: they are on the CPU target."""
        self._words[_RETURNS_WHEN_DONE] = 1

    def note_finished(self, num_launches: int) -> None:
        """The first so many launches have ended."""
        self._words[_NUM_FINISHED] = num_launches

    def write_lines(self, lines: np.ndarray) -> None:
        """Put a copy of lines that a device has elsewhere."""
        self._lines[:] = lines.view(np.uint8)


class RankWaits:
    """What a rank's file says now. Reading never waits and never fails half way."""

    def __init__(
        self, header: np.void, launches: np.ndarray, lines: np.ndarray, is_full: bool
    ) -> None:
        self.rank, self.world_size = int(header["rank"]), int(header["world_size"])
        self.pid, self.save_signal = int(header["pid"]), int(header["save_signal"])
        self.num_launches = int(launches["number_plus_1"].max(initial=0))
        all_but_one = max(self.num_launches - 1, 0) if header["returns_when_done"] else 0
        self.num_finished = max(int(header["num_finished"]), all_but_one)
        # There was no line for a wait: some are not in `lines`.
        self.is_full = is_full
        self.launches, self.lines = launches, lines

    @staticmethod
    def read(path: Path) -> RankWaits | None:
        """None for a file that is not whole, or not one."""
        try:
            before, content = (read_plain(path, HANG_BYTES + 1) for _ in range(2))
        except OSError:
            return None
        if len(content) != HANG_BYTES or len(before) != HANG_BYTES:
            return None
        header = np.frombuffer(content, HANG_HEADER, 1)[0]
        if int(header["magic"]) != HANG_MAGIC:
            return None
        launches = np.frombuffer(content, RECENT, NUM_RECENT, RECENT_OFFSET)
        launches = launches[launches["number_plus_1"] > 0]
        looks = [
            np.frombuffer(each, WAIT_LINE, NUM_LINES, LINES_OFFSET) for each in (before, content)
        ]
        return RankWaits(header, launches, _open_lines(*looks), bool(looks[1]["start_ticks"][-1]))

    def signature(self) -> bytes:
        """Changes whenever the rank has got on."""
        return b"%d %d" % (self.num_launches, self.num_finished) + self.lines.tobytes()


def _open_lines(before: np.ndarray, now: np.ndarray) -> np.ndarray:
    """The lines of open waits that two looks agree on: another may be half written."""
    before, now = (lines[np.flatnonzero(now["region"][:-1])] for lines in (before, now))
    is_same = [before[name] == now[name] for name in _SAYS_WHO]
    return now[np.logical_and.reduce(is_same)]


def read_waits(directory: Path) -> dict[int, RankWaits]:
    """Of all ranks that have a file."""
    found = {}
    for folder in folders_of(directory):
        for path in rank_files(folder, "waits").values():
            waits = RankWaits.read(path)
            if waits is not None:
                found[waits.rank] = waits
    return dict(sorted(found.items()))


def has_waits(directory: Path) -> bool:
    """Whether a kernel tells of a wait that lasts."""
    return any(len(each.lines) for each in read_waits(directory).values())


def signature_of(directory: Path) -> dict[int, bytes]:
    """Changes whenever a rank has got on."""
    return {rank: each.signature() for rank, each in read_waits(directory).items()}


def read_kernels(directory: Path, rank: int) -> dict[int, Kernel]:
    """The kernels of a rank by number, without those whose lines cannot be read."""
    return {each.number: each for each in said(directory, rank, Kernel)}
