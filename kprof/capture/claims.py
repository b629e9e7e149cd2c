"""Who writes into an unfinished capture, how far each rank is, and what went wrong.

    run.kprof.unfinished/
      rank-00003.live     see kprof.rank_memory

The system drops the lock when the process ends, however it ends. So the lock tells whether a rank
may still write.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from pathlib import Path

from kprof.capture.descriptors import OwnDescriptor
from kprof.capture.journal import Ended, Journal, Note, read_journal, said, say
from kprof.capture.losses import GaveUp, count_launches
from kprof.capture.manifest import MAX_COUNT
from kprof.capture.names import (
    events_file_name,
    rank_file,
    rank_files,
    summary_file_name,
)
from kprof.capture.output import writing
from kprof.capture.set_aside import set_aside
from kprof.capture.started import read_ranks_started
from kprof.capture.torch_traces import rank_of_torch_trace
from kprof.errors import CaptureError, RankTakenError
from kprof.private import is_locked, open_plain, read_plain, try_lock
from kprof.rank_memory import LIVE_BYTES, NUMBERS_BYTES, Live


class Claim:
    """The right to record a rank, which one process has until `release` or its end."""

    def __init__(self, directory: Path, rank: int) -> None:
        """Raises RankTakenError for a rank that is or was recorded, CaptureError for the disk."""
        path = rank_file(directory, rank, "live")
        with writing(path):
            opened = open_plain(path, os.O_RDWR | os.O_CREAT)
        self._file = OwnDescriptor(opened)
        file = self._file.number
        try:
            has_ended = bool(said(directory, rank, Ended))
            if not try_lock(file) or (has_ended and not _is_restarted()):
                raise RankTakenError(_taken(directory, rank))
            if num_launches := int.from_bytes(os.pread(file, 8, 0), "little"):
                # A process that died, or ran another program (exec).
                leave_message(directory, _keep_predecessor(directory, rank, num_launches))
            with writing(path):
                # What an earlier process has told does not count.
                os.ftruncate(file, NUMBERS_BYTES)
                # Real bytes: a hole in what is mapped means SIGBUS when the disk is full.
                begin = 0
                while begin < NUMBERS_BYTES:
                    begin += os.pwrite(file, bytes(NUMBERS_BYTES - begin), begin)
                os.ftruncate(file, LIVE_BYTES)
                self._page = _mapped(path)
                self.journal = Journal(directory, rank)
        except BaseException:
            self._file.close()
            raise
        # The numbers of kprof.rank_memory.Live. Other processes see them at once.
        self.progress = memoryview(self._page).cast("Q")

    def release(self) -> None:
        """Give up the rank.

        A forked child only closes its copies, which would keep the parent's lock.
        """
        self._file.close()


def _is_restarted() -> bool:
    """Whether torchrun has started all ranks again, because one had failed: those that ended well
    are recorded again, too."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def _keep_predecessor(directory: Path, rank: int, num_launches: int) -> str:
    """Set aside what an earlier process of this rank has left; returns a sentence about it."""
    parts = [*directory.glob(f"part-{rank:05d}-*.parquet")]
    parts += (path for path in directory.iterdir() if rank_of_torch_trace(path) == rank)
    finished = [directory / name for name in (events_file_name(rank), summary_file_name(rank))]
    parts += filter(Path.exists, finished)
    who = f"rank {rank}: an earlier process of this rank"
    try:
        place = set_aside(directory, rank, parts)
    except OSError as error:
        lost = f"lost {count_launches(num_launches)}, because the disk refused what it left"
        return f"{who} {lost} ({error.strerror or error})"
    if place is None:
        return f"{who} lost {count_launches(num_launches)}"
    made = f"made {count_launches(num_launches)} that are not in this capture"
    return f"{who} {made}: kprof recover {place} makes a capture of them"


def _mapped(path: Path) -> mmap.mmap:
    """The file in memory, opened once more: a mapping keeps its file open, and with it its lock."""
    file = open_plain(path, os.O_RDWR)
    try:
        return mmap.mmap(file, NUMBERS_BYTES)
    finally:
        os.close(file)


def _taken(directory: Path, rank: int) -> str:
    owner = next((entry for entry in read_ranks_started(directory) if entry.rank == rank), None)
    where = f" by process {owner.pid} on {owner.host}" if owner else ""
    return (
        f"rank {rank} is already recorded{where}, so process {os.getpid()} records nothing; "
        "give each process its own rank: kprof.recorder(rank=..., world_size=...)"
    )


def ranks_in_use(directory: Path) -> tuple[int, ...]:
    """The ranks whose recorders are open in a living process."""
    return tuple(rank for rank, path in rank_files(directory, "live").items() if is_locked(path))


def launch_counts(directory: Path) -> dict[int, int]:
    """The number of launches of every rank that ever had a recorder, and whose file is whole."""
    return {rank: numbers[Live.LAUNCHES] for rank, numbers in _whole_numbers(directory).items()}


def events_written(directory: Path) -> dict[int, int]:
    """How many events the parts of every rank have together, by its file where that is whole."""
    return {
        rank: max(0, numbers[Live.EVENTS] - numbers[Live.REMOVED])
        for rank, numbers in _whole_numbers(directory).items()
    }


def _whole_numbers(directory: Path) -> dict[int, tuple[int, ...]]:
    whole = {}
    for rank, numbers in live_numbers(directory, Live.REMOVED + 1).items():
        with contextlib.suppress(OSError):
            size_bytes = rank_file(directory, rank, "live").stat().st_size
            if size_bytes >= LIVE_BYTES and max(numbers) <= MAX_COUNT:
                whole[rank] = numbers
    return whole


def num_calls_of(directory: Path) -> dict[int, int]:
    """How often every rank that ever had a recorder called launch() or step()."""
    return {rank: numbers[1] for rank, numbers in live_numbers(directory, 2).items()}


def ranks_that_told(directory: Path) -> frozenset[int]:
    """The ranks whose messages say what they lost (lifetime.give_up)."""
    live = live_numbers(directory, Live.TOLD + 1)
    return frozenset(rank for rank, numbers in live.items() if numbers[Live.TOLD])


def unrecorded_launches(directory: Path) -> dict[int, int]:
    """How many launches ranks made after their recording stopped, where there were any."""
    live = live_numbers(directory, Live.UNRECORDED + 1)
    return {
        rank: numbers[Live.UNRECORDED] for rank, numbers in live.items() if numbers[Live.UNRECORDED]
    }


def live_numbers(directory: Path, count: int = NUMBERS_BYTES // 8) -> dict[int, tuple[int, ...]]:
    """The first numbers in `Claim.progress` of every rank that ever had a recorder; 0 where the
    file is shorter."""
    numbers = {}
    for rank, path in rank_files(directory, "live").items():
        with contextlib.suppress(OSError):
            content = read_plain(path, 8 * count).ljust(8 * count, b"\0")
            numbers[rank] = struct.unpack(f"<{count}Q", content)
    return numbers


def leave_message(directory: Path, message: str | GaveUp) -> bool:
    """Say something to whoever finishes the capture; false where the disk refuses."""
    with contextlib.suppress(CaptureError):
        say(directory, None, Note(message) if isinstance(message, str) else message)
        return True
    return False


def read_messages(directory: Path) -> tuple[str | GaveUp, ...]:
    """What was left by `leave_message`, each message once."""
    try:
        lines, _ = read_journal(directory, None)
    except OSError:
        return ()
    said = (line.text if isinstance(line, Note) else line for line in lines)
    return tuple(dict.fromkeys(each for each in said if isinstance(each, str | GaveUp)))
