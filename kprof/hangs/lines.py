"""The memory in which a rank says what it launches and which of its waits last long.

    run.kprof.unfinished/waits -> /dev/shm/kprof-waits-x7d2k1/      made by whoever records
      rank-00003             a file per rank, made and mapped by its recorder:
        0       header       HEADER
        4096    launches     LAUNCH x NUM_LAUNCHES, launch n in place n % NUM_LAUNCHES
        20480   lines        kprof.abi.WAIT_LINE x NUM_LINES, which kernels write
      rank-00003.arena       see kprof.recording.ledger
    run.kprof.unfinished/
      rank-00003.waits       in place of that file where it has no room in shared memory
      rank-00003.kernels     a JSON line for each kernel with its regions
      rank-00003.tracks      which blocks had begun when the rank was asked

It outlives the process that writes it: whoever reads it needs no GPU, no interpreter lock and no
answer. Where /dev/shm cannot be written, `waits` is a folder on the disk. A GPU that cannot write
to such a file has lines of its own, which are copied when somebody asks (Waits.save).

Ranks lock their files as long as they live. A folder that nobody locks was left by a recording that
was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from kprof.abi import CHUNK_BYTES, CHUNK_CLAIMED, CHUNK_HEADER, CHUNK_HEADER_BYTES, WAIT_LINE
from kprof.capture.claims import is_locked, ranks_in_use, try_lock
from kprof.capture.directory import completing, rank_file
from kprof.capture.manifest import Launch
from kprof.devices.mapping import SharedFile
from kprof.errors import CaptureError
from kprof.regions import RegionTable

WAITS_NAME: Final = "waits"
NUM_LINES: Final = 8192
NUM_LAUNCHES: Final = 1024
_MAGIC: Final = int.from_bytes(b"KPROFWTS", "little")
_LAUNCHES_OFFSET: Final = 4096
LAUNCH: Final = np.dtype(
    [("number_plus_1", "<u4"), ("kernel", "<u4"), ("ordinal", "<u4"), ("num_blocks", "<u4")]
)
LINES_OFFSET: Final = _LAUNCHES_OFFSET + NUM_LAUNCHES * LAUNCH.itemsize
SIZE_BYTES: Final = LINES_OFFSET + NUM_LINES * WAIT_LINE.itemsize
HEADER: Final = np.dtype(
    [
        ("magic", "<u8"),
        ("num_launches", "<u8"),
        ("num_finished", "<u8"),
        ("rank", "<u4"),
        ("world_size", "<u4"),
        ("pid", "<u8"),
        ("save_signal", "<u8"),
    ]
)
_NUM_LAUNCHES_WORD: Final = 1
_NUM_FINISHED_WORD: Final = 2
_SAVE_SIGNAL_WORD: Final = 5
_SHARED_MEMORY_DIR: Final = Path("/dev/shm")
_PREFIX: Final = "kprof-waits-"
_RANKS: Final = "rank-?????"
# Names the directory of the recording.
_OWNER: Final = "directory"
# Files of kprof.recording.ledger in the same folder.
ARENAS: Final = ("rank-?????.arena", "rank-?????.launches-*")
_ON_DISK: Final = ".waits"
# A folder younger than this may not be locked yet.
_STALE_AFTER_S: Final = 60.0


class Kernel(msgspec.Struct, frozen=True):
    """A kernel and the regions of its records; LAUNCH.kernel is its number."""

    name: str
    regions: RegionTable
    number: int = 0


@contextlib.contextmanager
def shared_waits(directory: Path) -> Iterator[None]:
    """A place for the waits of a recording, which ends with the block."""
    _remove_stale()
    folder, lock = _make_folder(directory)
    try:
        yield
    finally:
        # `kprof recover` needs what ranks have there if the disk refuses, or a rank still runs,
        # which may be killed later.
        is_needed = isinstance(sys.exc_info()[1], CaptureError) or ranks_in_use(directory)
        if not is_needed:
            remove_waits(directory)
            if lock >= 0:
                shutil.rmtree(folder, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


def _make_folder(directory: Path) -> tuple[Path, int]:
    """The folder, and a descriptor that locks it as long as this process lives; -1 on the disk."""
    link = directory / WAITS_NAME
    try:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_SHARED_MEMORY_DIR))
    except OSError:
        with contextlib.suppress(OSError):
            link.mkdir(exist_ok=True)
        return link, -1
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try_lock(lock, fcntl.LOCK_SH)
    with contextlib.suppress(OSError):
        link.symlink_to(folder)
        (folder / _OWNER).write_text(str(directory.absolute()))
    return folder, lock


def remove_waits(directory: Path) -> None:
    """Remove the waits of a recording, also of one whose kprof was killed."""
    link = directory / WAITS_NAME
    with contextlib.suppress(OSError):
        if link.is_symlink():
            shutil.rmtree(link.resolve(), ignore_errors=True)
            link.unlink()
        elif link.is_dir():
            shutil.rmtree(link, ignore_errors=True)


def _remove_stale() -> None:
    """Remove what recordings left that were killed: neither kprof nor a rank lives."""
    for folder in _SHARED_MEMORY_DIR.glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):
            is_old = time.time() - folder.stat().st_mtime >= _STALE_AFTER_S
            if is_old and not any(map(is_locked, (folder, *folder.glob(_RANKS)))):
                _rescue(folder)
                shutil.rmtree(folder, ignore_errors=True)


def _rescue(folder: Path) -> None:
    """Move the arenas of ranks that were killed with their kprof to its directory, for `kprof
    recover`."""
    owner = folder / _OWNER
    directory = Path(owner.read_text()) if owner.exists() else folder
    if (directory / WAITS_NAME).resolve() == folder:
        for pattern in ARENAS:
            for path in folder.glob(pattern):
                shutil.move(path, directory / path.name)


def lines_path(directory: Path, rank: int) -> Path:
    """The file of a rank, where it has room in shared memory."""
    return directory / WAITS_NAME / f"rank-{rank:05d}"


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


def write_tracks(directory: Path, rank: int, tracks: list[np.ndarray]) -> None:
    """Say which blocks had begun, as `tracks_in` found them."""
    pairs = np.concatenate([np.empty((0, 2), np.uint32), *tracks])
    write_rows(directory, rank, "tracks", pairs.astype("<u4"))


def read_tracks(directory: Path, rank: int) -> dict[int, frozenset[int]]:
    """The blocks that had begun, by launch."""
    pairs = read_rows(directory, rank, "tracks", np.dtype("(2,)<u4"))
    return {
        int(launch): frozenset(pairs[pairs[:, 0] == launch, 1].tolist())
        for launch in np.unique(pairs[:, 0])
    }


def write_rows(directory: Path, rank: int, what: str, rows: np.ndarray) -> None:
    """What a rank tells whoever looks; nothing where the disk refuses."""
    with (
        contextlib.suppress(CaptureError),
        completing(rank_file(directory, rank, what)) as temporary,
    ):
        temporary.write_bytes(rows.tobytes())


def read_rows(directory: Path, rank: int, what: str, kind: np.dtype) -> np.ndarray:
    """What the rank told last; no rows where it told nothing."""
    content = b""
    with contextlib.suppress(OSError):
        content = rank_file(directory, rank, what).read_bytes()
    return np.frombuffer(content[: len(content) // kind.itemsize * kind.itemsize], kind)


def _new_file(directory: Path, rank: int) -> tuple[SharedFile, bool]:
    """New memory for the lines of a rank, and whether it is shared memory."""
    path = lines_path(directory, rank)
    on_disk = directory / (path.name + _ON_DISK)
    on_disk.unlink(missing_ok=True)
    try:
        return SharedFile(path, SIZE_BYTES), (directory / WAITS_NAME).is_symlink()
    except OSError:
        return SharedFile(on_disk, SIZE_BYTES), False


class WaitsWriter:
    """A rank's file, mapped by its recorder. `address` is that of its lines in this process."""

    def __init__(self, directory: Path, rank: int, world_size: int, save_signal: int = 0) -> None:
        """`save_signal` makes this process save what it has recorded (0: nothing does).

        `is_in_memory` tells whether its lines are in shared memory; otherwise they are in a file on
        the disk. Raises OSError where there is no room on either.
        """
        file, self.is_in_memory = _new_file(directory, rank)
        self._kernels_path = rank_file(directory, rank, "kernels")
        self._kernels_path.write_bytes(b"")
        header = file.content[: HEADER.itemsize].view(HEADER)
        header["rank"], header["world_size"], header["pid"] = rank, world_size, os.getpid()
        header["save_signal"] = save_signal
        header["magic"] = _MAGIC
        self._words = file.content.data[:_LAUNCHES_OFFSET].cast("Q")
        self._launches = file.content.data[_LAUNCHES_OFFSET:LINES_OFFSET].cast("I")
        self._lines = file.content[LINES_OFFSET:]
        self._known: dict[tuple[str, int], int] = {}
        self.begin_address, self.address = file.address, file.address + LINES_OFFSET

    def say_saves_on(self, signal_number: int) -> None:
        """This signal makes this process save what it has recorded."""
        self._words[_SAVE_SIGNAL_WORD] = signal_number

    def note_launch(self, row: Launch, table_idx: int, regions: RegionTable) -> None:
        """A launch is about to be made, whose regions are that table of the rank's."""
        kernel = self._known.get((row.kernel, table_idx))
        if kernel is None:
            kernel = self._known[row.kernel, table_idx] = len(self._known)
            self._introduce(Kernel(row.kernel, regions, kernel))
        place = row.launch % NUM_LAUNCHES * 4
        launches = self._launches
        launches[place] = 0
        launches[place + 1] = kernel
        launches[place + 2] = row.ordinal & 0xFFFF_FFFF
        launches[place + 3] = row.num_blocks & 0xFFFF_FFFF
        launches[place] = row.launch + 1
        self._words[_NUM_LAUNCHES_WORD] = row.launch + 1

    def _introduce(self, kernel: Kernel) -> None:
        with contextlib.suppress(OSError), self._kernels_path.open("ab") as file:
            # A line that a full disk has cut short must not spoil the next one.
            file.write(b"\n" + msgspec.json.encode(kernel))

    def note_finished(self, num_launches: int) -> None:
        """The first so many launches have ended."""
        self._words[_NUM_FINISHED_WORD] = num_launches

    def write_lines(self, lines: np.ndarray) -> None:
        """Put a copy of lines that a device has elsewhere."""
        self._lines[:] = lines.view(np.uint8)


class RankWaits:
    """What a rank's file says now. Reading never waits and never fails half way."""

    def __init__(self, header: np.void, launches: np.ndarray, lines: np.ndarray) -> None:
        self.rank, self.world_size = int(header["rank"]), int(header["world_size"])
        self.pid, self.save_signal = int(header["pid"]), int(header["save_signal"])
        self.num_launches = int(header["num_launches"])
        self.num_finished = int(header["num_finished"])
        self.launches, self.lines = launches, lines

    @staticmethod
    def read(path: Path) -> RankWaits | None:
        """None for a file that is not whole, or not one."""
        try:
            content = path.read_bytes()
        except OSError:
            return None
        if len(content) != SIZE_BYTES:
            return None
        header = np.frombuffer(content, HEADER, 1)[0]
        if int(header["magic"]) != _MAGIC:
            return None
        launches = np.frombuffer(content, LAUNCH, NUM_LAUNCHES, _LAUNCHES_OFFSET)
        lines = np.frombuffer(content, WAIT_LINE, NUM_LINES, LINES_OFFSET)
        return RankWaits(
            header, launches[launches["number_plus_1"] > 0], lines[lines["region"] > 0]
        )

    def signature(self) -> bytes:
        """Changes whenever the rank has got on."""
        return b"%d %d" % (self.num_launches, self.num_finished) + self.lines.tobytes()


def read_waits(directory: Path) -> dict[int, RankWaits]:
    """Of all ranks that have a file."""
    found = {}
    for path in [*(directory / WAITS_NAME).glob(_RANKS), *directory.glob(_RANKS + _ON_DISK)]:
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


def read_kernels(directory: Path, rank: int) -> list[Kernel]:
    """The kernels of a rank by number; one that could not be written has no name."""
    try:
        text = rank_file(directory, rank, "kernels").read_bytes()
    except OSError:
        return []
    found = {}
    for line in text.splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            kernel = msgspec.json.decode(line, type=Kernel)
            found[kernel.number] = kernel
    unknown = Kernel("an unknown kernel", RegionTable())
    return [found.get(number, unknown) for number in range(max(found, default=-1) + 1)]
