"""The shared memory of a recording: what its ranks write there outlives them, and costs no disk.

    /dev/shm/kprof-1000-v2/      mode 0700 (kprof.private)
      8f2c...                    of one recording; the name is a hash, see `_folder_of`
        directory                mount namespace and path of that recording, for `kprof clean`
        rank-00003.waits         see kprof.hangs.lines
        rank-00003.arena         see kprof.recording.arenas.ledger
      heap-17-7f00               see kprof.devices.symmetric
    run.kprof.unfinished/
      said                       the journal has a random text; none where /dev/shm cannot be used,
                                 and then the files of ranks are beside it
      kprof-copy                 only in a copy that `kprof recover -o` works on

No file of a recording names a place in memory: the name follows from the random text and from the
inode of the directory. So a recording that somebody sends can lead nowhere.

The memory is removed when the capture is complete, or with its directory. Memory whose directory
is gone is removed by the next command. Every file is locked as long as a process maps it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kprof.capture.names import SAID_NAME
from kprof.capture.processes import own_namespace
from kprof.private import (
    UntrustedError,
    held,
    is_locked,
    locked,
    make_private,
    memory_root,
    new_file,
    read_plain,
)

COPY_NAME: Final = "kprof-copy"
OWNER_NAME: Final = "directory"
_TOKEN_BYTES: Final = 16


def make_memory(directory: Path) -> str:
    """Make the memory of a recording whose journal has begun, on the disk where /dev/shm cannot be
    used.

    Returns why not, or nothing.
    """
    # Loads numpy, which `--help` need not.
    from kprof.capture.journal import Memory, append, journal_path

    journal = journal_path(directory, None)
    try:
        root = memory_root(make=True)
        memory = Memory(secrets.token_hex(_TOKEN_BYTES))
        # First: memory of which no journal says anything is garbage.
        append(journal, memory)
        with locked(root):
            folder = make_private(_folder_of(directory, root, memory.token))
            owner = b"%d %b" % (own_namespace("mnt"), os.fsencode(directory.absolute()))
            with os.fdopen(new_file(folder / OWNER_NAME), "wb") as file:
                file.write(owner)
    except OSError as error:
        remove_memory(directory)
        with contextlib.suppress(OSError):
            append(journal, Memory())
        return error.strerror or str(error)
    return ""


def memory_of(directory: Path) -> Path | None:
    """The folder that the ranks of a recording share on this host, which is the directory itself
    where memory cannot be used; None where none is found."""
    with contextlib.suppress(OSError):
        return find_memory(directory)
    return None


def find_memory(directory: Path) -> Path | None:
    """The same, but raises OSError where nobody can say whether there is one."""
    from kprof.capture.journal import Memory, read_journal

    lines, _ = read_journal(directory, None)
    tokens = [line.token for line in lines if isinstance(line, Memory)]
    if not tokens or not tokens[-1]:
        return directory if tokens else None
    try:
        folder = _folder_of(directory, memory_root(), tokens[-1])
        folder.stat()
    except (FileNotFoundError, UntrustedError):
        return None
    return folder


def folders_of(directory: Path) -> list[Path]:
    """Where files of a recording may be, each place once: its memory, if it is found, and the
    directory."""
    with contextlib.suppress(OSError):
        return find_folders(directory)
    return [directory]


def find_folders(directory: Path) -> list[Path]:
    """The same, but raises OSError where nobody can say whether there is memory."""
    return [*dict.fromkeys((find_memory(directory) or directory, directory))]


def remove_memory(directory: Path) -> None:
    """Remove the memory of a recording. Nothing outside of it is removed, whatever it holds."""
    with contextlib.suppress(OSError), held(directory) as here:
        folder = memory_of(here)
        if folder not in (None, here):
            shutil.rmtree(folder, ignore_errors=True)


def discard(directory: Path) -> None:
    """Remove a directory that is no recording worth keeping, and its memory."""
    remove_memory(directory)
    shutil.rmtree(directory, ignore_errors=True)


def discard_copy(directory: Path) -> None:
    """Remove a copy; what says that it is one goes last."""
    with contextlib.suppress(OSError), held(directory) as here:
        if is_copy(here / "."):
            for path in here.iterdir():
                if path.name not in (COPY_NAME, SAID_NAME):
                    path.unlink()
    discard(directory)


@dataclass(frozen=True)
class Left:
    """The memory of a recording of this user; `directory` is where it wrote, as its mount
    namespace calls it."""

    folder: Path
    directory: Path
    namespace: int

    @property
    def size_bytes(self) -> int:
        """Bytes in memory."""
        return sum(file.stat().st_size for file in self.folder.iterdir())

    def is_used(self) -> bool:
        """Whether a living process records there."""
        return any(map(is_locked, (self.directory, *self.folder.iterdir())))

    def is_garbage(self) -> bool:
        """Whether nobody uses it, and `kprof recover` can never find it either."""
        return self._is_lost() and not any(map(is_locked, self.folder.iterdir()))

    def is_left_copy(self) -> bool:
        """Whether it is of a copy that a `kprof recover` made which was killed."""
        is_its = memory_of(self.directory) == self.folder and is_copy(self.directory)
        return is_its and not self.is_used()

    def _is_lost(self) -> bool:
        try:
            self.directory.lstat()
        except (FileNotFoundError, NotADirectoryError):
            # In a container the same path may mean something else.
            return self.namespace == own_namespace("mnt")
        except OSError:
            # A disk that does not answer now may do so later.
            return False
        return memory_of(self.directory) != self.folder


def left_in_memory() -> list[Left]:
    """The memory of all recordings of this user."""
    try:
        root = memory_root()
        with locked(root):
            return [_describe(folder) for folder in sorted(root.iterdir()) if folder.is_dir()]
    except OSError:
        return []


def remove_garbage() -> None:
    """Remove what no recording needs: its directory is gone, or the process that had a heap."""
    with contextlib.suppress(OSError):
        root = memory_root()
        with locked(root):
            for entry in root.iterdir():
                if not entry.is_dir():
                    if not is_locked(entry):
                        entry.unlink(missing_ok=True)
                elif (left := _describe(entry)).is_garbage():
                    shutil.rmtree(entry, ignore_errors=True)
                elif left.is_left_copy():
                    discard_copy(left.directory)


def is_copy(directory: Path) -> bool:
    """Whether a directory of this user is a copy of a recording that is somewhere else."""
    with contextlib.suppress(OSError):
        status = directory.lstat()
        is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        return is_ours and stat.S_ISREG((directory / COPY_NAME).lstat().st_mode)
    return False


def _describe(folder: Path) -> Left:
    with contextlib.suppress(OSError, ValueError):
        namespace, _, path = read_plain(folder / OWNER_NAME).partition(b" ")
        return Left(folder, Path(os.fsdecode(path)), int(namespace))
    # Whoever made it was killed before it could say for what.
    return Left(folder, folder, own_namespace("mnt"))


def _folder_of(directory: Path, root: Path, token: str) -> Path:
    """Where its memory is. A copy of the directory has no memory, nor has one with another
    inode."""
    status = directory.stat()
    place = f"{status.st_dev} {status.st_ino} {token}".encode()
    return root / hashlib.blake2b(place, digest_size=16).hexdigest()
