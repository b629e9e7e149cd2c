"""What is said while a recording is made: journals of JSON lines, which are only ever appended to.

    run.kprof.unfinished/
      said                what concerns all: Begun, Memory, Note, GaveUp, Dump; anybody writes
      rank-00003.said     RankStarted, Opened, Table, Kernel, Captured, Note, Answer, Aligned,
                          Ended; the rank writes, and when it has ended whoever finishes the capture

A line is there when it was written, whatever comes then. One that a kill or a full disk cut short
is skipped, and spoils no other. The first journal ends with zeros, which lines replace: space that
is reserved while there is some, so that a rank can say that the disk is full.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from kprof.capture.files import MAX_JSON_BYTES
from kprof.capture.losses import GaveUp
from kprof.capture.manifest import Alignment, Launch, RankInfo, RankStarted, Text, WorldSize
from kprof.capture.names import SAID_NAME, rank_file, rank_files
from kprof.capture.output import writing
from kprof.capture.processes import wait_until
from kprof.errors import CaptureError, RegionError
from kprof.private import new_file, opened, read_plain, try_lock
from kprof.regions import RegionTable

RESERVED_BYTES: Final = 16 << 10
_PATIENCE_S: Final = 5.0
_POLL_S: Final = 0.001


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """What a recording was asked to do, said before the workload starts."""

    command: tuple[Text, ...]
    created_utc: Text
    num_procs: WorldSize


class Memory(msgspec.Struct, frozen=True, tag="memory"):
    """Where the memory of the recording is: a random text that kprof.capture.shared_memory makes a
    name of; none where it is on the disk. The last one counts."""

    token: Text = ""


class Dump(msgspec.Struct, frozen=True, tag="dump"):
    """A request to write what the rings hold. `rank` asked for it; -1 is kprof itself."""

    why: str
    rank: int = -1


class Opened(msgspec.Struct, frozen=True, tag="facts"):
    """What is known when the recorder opens. `info` has no launches.

    `arena_bytes` is the size of each of `num_arenas` arenas.
    """

    info: RankInfo
    arena_bytes: int
    num_arenas: int
    is_ring: bool
    switches: bytes
    lines: tuple[int, int, int, int, int]


class Table(msgspec.Struct, frozen=True, tag="table"):
    """The next region table."""

    regions: RegionTable


class Kernel(msgspec.Struct, frozen=True, tag="kernel"):
    """Launches name it by `number`. Its regions have the names that they have among all."""

    name: str
    regions: RegionTable
    number: int = 0


class Captured(msgspec.Struct, frozen=True, tag="captured"):
    """A launch that will be replayed; `table` is the index of its regions."""

    row: Launch
    table: int


class Note(msgspec.Struct, frozen=True, tag="note"):
    """A sentence for the capture."""

    text: str


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """What a rank said when it was asked. Rows, as bytes: launch and block of the tracks that had
    begun, and the announced spans that were open (SPAN of kprof.hangs.announced)."""

    tracks: bytes = b""
    spans: bytes = b""


class Aligned(msgspec.Struct, frozen=True, tag="aligned"):
    """The clocks of all ranks, by rank 0; a later one replaces an earlier one."""

    alignment: Alignment


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """What the recorder knew at its end, and what finishing has added; the last one counts."""

    info: RankInfo


_OfAll = Begun | Memory | Dump | GaveUp | Note
Line = _OfAll | RankStarted | Opened | Table | Kernel | Captured | Answer | Aligned | Ended
T = TypeVar("T", bound=Line)
# Made here, not by the threads that use it: see kprof.capture.manifest.
_LINES: Final[msgspec.json.Decoder[Line]] = msgspec.json.Decoder(Line)


class Journal:
    """A new journal of a rank, which its process writes. `on_refusal` is called when the disk has
    refused a line."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._directory, self._rank = directory, rank
        self._pid = os.getpid()
        self.on_refusal: Callable[[], None] = lambda: None
        os.close(new_file(rank_file(directory, rank, "said")))

    def say(self, line: Line) -> None:
        """Add a line; what is recorded is worth more than one that the disk refuses.

        A forked child says nothing here.
        """
        if os.getpid() != self._pid:
            return
        try:
            say(self._directory, self._rank, line)
        except CaptureError:
            self.on_refusal()

    def note(self, text: str) -> None:
        """Add a sentence for the capture."""
        self.say(Note(text))


def journal_path(directory: Path, rank: int | None) -> Path:
    """The journal of a rank, or of all (None)."""
    return directory / SAID_NAME if rank is None else rank_file(directory, rank, "said")


def begin_journal(directory: Path, begun: Begun) -> None:
    """Begin the journal of a recording; raises OSError."""
    path = journal_path(directory, None)
    with os.fdopen(new_file(path), "wb") as file:
        file.write(bytes(RESERVED_BYTES))
    append(path, begun)


def say(directory: Path, rank: int | None, line: Line) -> None:
    """Add a line to the journal of a rank, or of all (None); raises CaptureError."""
    path = journal_path(directory, rank)
    with writing(path):
        append(path, line)


def append(path: Path, line: Line) -> None:
    """Add a line to a journal; raises OSError."""
    # The line before may have been cut short.
    content = b"\n" + msgspec.json.encode(line)
    # Threads of a rank need no lock for that, nor has its journal zeros at its end.
    is_shared = path.name == SAID_NAME
    how = os.O_RDWR | os.O_CREAT | (0 if is_shared else os.O_APPEND)
    with opened(path, how) as file, _locked(file) if is_shared else contextlib.nullcontext():
        # What is opened to append goes to the end, wherever it is to be.
        end = _end_of_lines(file) if is_shared else 0
        while content:
            num_written = os.pwrite(file, content, end)
            content, end = content[num_written:], end + num_written


def _end_of_lines(file: int) -> int:
    """Where the zeros begin that are reserved at the end of a file."""
    end = os.fstat(file).st_size
    reserved = os.pread(file, RESERVED_BYTES, max(0, end - RESERVED_BYTES))
    return end - len(reserved) + len(reserved.rstrip(b"\0"))


@contextlib.contextmanager
def _locked(file: int) -> Iterator[None]:
    """One process at a time adds a line, where the file system has locks.

    One that was stopped meanwhile, or whose signal handler says something, does not hinder others
    for long.
    """
    wait_until(lambda: try_lock(file), _PATIENCE_S, _POLL_S)
    try:
        yield
    finally:
        # A child that was forked meanwhile has the lock as well.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def read_journal(directory: Path, rank: int | None) -> tuple[list[Line], int]:
    """All that is in a journal, and how many lines cannot be read. Raises OSError."""
    texts, lines = _texts(journal_path(directory, rank)), list[Line]()
    for text in texts:
        with contextlib.suppress(*_DAMAGED):
            lines.append(_LINES.decode(text))
    return lines, len(texts) - len(lines)


def said(directory: Path, rank: int | None, kind: type[T]) -> list[T]:
    """What is said of one kind, as far as it can be read. Other lines are not decoded."""
    begin = b'{"type":"%s"' % str(kind.__struct_config__.tag).encode()
    found: list[T] = []
    with contextlib.suppress(OSError):
        for text in _texts(journal_path(directory, rank)):
            if text.startswith(begin):
                with contextlib.suppress(*_DAMAGED):
                    found.append(_LINES.decode(text))  # type: ignore[arg-type]
    return found


def last_said(directory: Path, kind: type[T]) -> dict[int, T]:
    """The last line of one kind of every rank that has one."""
    ranks = sorted(rank_files(directory, "said"))
    found = {rank: said(directory, rank, kind) for rank in ranks}
    return {rank: lines[-1] for rank, lines in found.items() if lines}


_DAMAGED: Final = (msgspec.DecodeError, UnicodeDecodeError, RegionError, RecursionError)


def _texts(path: Path) -> list[bytes]:
    content = b""
    with contextlib.suppress(FileNotFoundError):
        content = read_plain(path, MAX_JSON_BYTES).rstrip(b"\0")
    return [text for text in content.split(b"\n") if text]
