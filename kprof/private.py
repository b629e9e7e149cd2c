"""Files in places where other users can write, such as /dev/shm, and files that strangers made.

A directory of ours has mode 0700, belongs to this user, and lies where nobody else can replace it.
Its files have mode 0600. Files are opened without following a link and without waiting for a pipe,
and only plain files are opened. Only contents are ever copied, never modes or owners.

Who owns the folder around a directory of ours can put a link in its place at any time. So files are
made, opened and removed relative to the directory itself (`held`), never by its name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# /dev/shm of Linux: memory that is a file, so that it outlives a process.
_MEMORY_DIR: Final = Path("/dev/shm")
_SAFELY: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_READ_BYTES: Final = 1 << 20
_MOST_LINKS: Final = 40
_DESCRIPTORS: Final = Path("/proc/self/fd")


def memory_root(*, make: bool = False) -> Path:
    """/dev/shm/kprof-UID-v2, the directory for all shared memory of this user.

    Raises OSError where there is none, or it cannot be trusted.
    """
    # Versions that name memory in other ways would take each other's for garbage.
    root = _MEMORY_DIR / f"kprof-{os.geteuid()}-v2"
    return make_private(root) if make else check_private(root)


def make_private(path: Path) -> Path:
    """Make a directory for this user alone, unless it is there; raises OSError."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    return check_private(path)


def check_private(path: Path) -> Path:
    """The same path, if it is a directory of ours that nobody else can change or replace.

    Raises OSError.
    """
    place = Path(os.path.realpath(path.parent))
    for above in (place, *place.parents):
        status = above.stat()
        is_shared = others_can_write(status) and not status.st_mode & stat.S_ISVTX
        if is_shared or status.st_uid not in (0, os.geteuid()):
            raise _untrusted(path, f"other users can replace it in {above}")
    try:
        with opened(path, os.O_RDONLY | os.O_DIRECTORY) as directory:
            status = os.fstat(directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _untrusted(path, "it is not a directory") from error
        raise
    if status.st_uid != os.geteuid():
        raise _untrusted(path, f"it belongs to user {status.st_uid}")
    if status.st_mode & 0o077:
        raise _untrusted(path, f"other users can open it (mode {status.st_mode & 0o777:o})")
    return path


def others_can_write(status: os.stat_result) -> bool:
    """Whether other users can change a file or directory: all, or the members of its group.

    A group that has its user's name and no other members is nobody else, as where the umask is 002.
    """
    if not status.st_mode & stat.S_IWGRP:
        return bool(status.st_mode & stat.S_IWOTH)
    try:
        group, user = grp.getgrgid(status.st_gid), pwd.getpwuid(status.st_uid)
    except KeyError:
        return True
    is_own = group.gr_name == user.pw_name and {*group.gr_mem} <= {user.pw_name}
    return not is_own or bool(status.st_mode & stat.S_IWOTH)


def share(path: Path) -> None:
    """Give a directory of ours the mode that a new one has; raises OSError."""
    with opened(path, os.O_RDONLY | os.O_DIRECTORY) as directory:
        os.fchmod(directory, stat.S_IMODE(os.fstat(directory).st_mode) | 0o777 & ~_umask())


def _umask() -> int:
    """Read, not set and set back: other threads make files. Where nobody says it, the strictest."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(errors="replace").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077


class UntrustedError(PermissionError):
    """A directory that other users can change, or can have made. `strerror` says why."""


def _untrusted(path: Path, why: str) -> UntrustedError:
    return UntrustedError(errno.EPERM, f"kprof does not use {path}, because {why}", str(path))


@contextlib.contextmanager
def held(folder: Path) -> Iterator[Path]:
    """Another path of `folder`, which means this very one however others rename it.

    Raises OSError, and UntrustedError where it is a link of another user.
    """
    file = _open_folder(folder)
    path = _DESCRIPTORS / str(file)
    try:
        yield path if path.exists() else folder
    except OSError as error:
        if isinstance(error.filename, str):
            # A sentence about it names what the user knows.
            error.filename = error.filename.replace(f"{path}/", f"{folder}/", 1)
        raise
    finally:
        os.close(file)


def _open_folder(folder: Path) -> int:
    """A descriptor by which files in a folder are opened."""
    for _ in range(_MOST_LINKS):
        follow = 0 if folder.parent == _DESCRIPTORS else os.O_NOFOLLOW
        try:
            return os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | follow)
        except NotADirectoryError:
            folder = folder.parent / _own_link(folder)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))


def _own_link(path: Path) -> str:
    """Where a link leads that nobody but us, or root, has made."""
    file = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if not stat.S_ISLNK(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        if status.st_uid not in (0, os.geteuid()):
            raise _untrusted(path, f"it is a link of user {status.st_uid}")
        return os.readlink("", dir_fd=file)
    finally:
        os.close(file)


def remove(path: Path) -> None:
    """Remove a file, if it is there; raises OSError."""
    with held(path.parent) as here:
        (here / path.name).unlink(missing_ok=True)


def move(path: Path, goal: Path) -> None:
    """Give a file another name, in the place of what has it; raises OSError."""
    with held(path.parent) as here, held(goal.parent) as there:
        (here / path.name).replace(there / goal.name)


def remove_files(folder: Path, *patterns: str) -> None:
    """Remove the files in a folder with such names, as far as the system lets us."""
    with contextlib.suppress(OSError), held(folder) as here:
        for path in (each for pattern in patterns for each in here.glob(pattern)):
            with contextlib.suppress(OSError):
                path.unlink()


@contextlib.contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """A descriptor of a plain file, or of a directory with O_DIRECTORY; raises OSError."""
    file = open_plain(path, flags)
    try:
        yield file
    finally:
        os.close(file)


def open_plain(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a plain file, not what a link leads to; raises OSError.

    With O_DIRECTORY it is a directory. To write, no other name may lead to the file.
    """
    with held(path.parent) as here:
        # Of a path such as "/" the name is empty, and `here` looks like a link.
        file = os.open(f"{here}/{path.name or '.'}", flags | _SAFELY, 0o600)
    status = os.fstat(file)
    is_plain = stat.S_ISREG(status.st_mode) or bool(flags & os.O_DIRECTORY)
    is_linked = flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1
    if not is_plain or is_linked:
        os.close(file)
        raise OSError(errno.ELOOP, "it is a link or not a regular file", str(path))
    return file


def new_file(path: Path, mode: int = 0o600) -> int:
    """A descriptor of a new file; what has its name is removed, never opened. Raises OSError."""
    with held(path.parent) as here:
        return new_file_in(here, path.name, mode)


def new_file_in(folder: Path, name: str, mode: int = 0o600) -> int:
    """The same in a folder that the user names, wherever links lead. Raises OSError."""
    (folder / name).unlink(missing_ok=True)
    return os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFELY, mode)


def read_plain(path: Path, limit_bytes: int | None = None) -> bytes:
    """The bytes of a plain file, at most so many; raises OSError."""
    with os.fdopen(open_plain(path), "rb") as file:
        if limit_bytes is None:
            return file.read()
        # Python takes memory for as many bytes as it is to read at most.
        return file.read(min(limit_bytes, os.fstat(file.fileno()).st_size))


def copy_plain(source: Path, target: Path) -> None:
    """Make `target` a new file of ours with the bytes of `source`; raises OSError."""
    with (
        os.fdopen(open_plain(source), "rb") as reading,
        os.fdopen(new_file(target), "wb") as writing,
    ):
        while content := reading.read(_READ_BYTES):
            writing.write(content)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One process at a time makes or removes what is in there. Raises OSError."""
    with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def try_lock(file: int) -> bool:
    """Whether nobody else holds the lock. Always true on a file system without locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def is_locked(path: Path) -> bool:
    """Whether a living process has locked a file or directory."""
    kind = os.O_DIRECTORY if path.is_dir() else 0
    try:
        with opened(path, os.O_RDONLY | kind) as file:
            return not try_lock(file)
    except OSError:
        return False


@contextlib.contextmanager
def heap_file(name: str, size_bytes: int) -> Iterator[Path]:
    """A new file of zeros in the memory of this user, which is gone after the block.

    All of it is reserved: a full memory means OSError here and not SIGBUS later.
    """
    root = memory_root(make=True)
    path = root / f"heap-{name}"
    with locked(root):
        file = new_file(path)
        fcntl.flock(file, fcntl.LOCK_SH)
    try:
        os.posix_fallocate(file, 0, size_bytes)
        yield path
    finally:
        path.unlink(missing_ok=True)
        os.close(file)
