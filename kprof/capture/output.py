"""Output files: never overwritten unasked, renamed when complete, and one sentence on failure."""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from threading import get_ident
from typing import IO, Final

import msgspec

from kprof.capture.descriptors import OwnDescriptor
from kprof.errors import CaptureError, ExportError, OutputExistsError
from kprof.private import UntrustedError, move, new_file, new_file_in, remove

# Level 1 takes a third of the time of the default level for a tenth more bytes.
_GZIP_LEVEL: Final = 1


_REMEDIES: Final = {
    errno.ENOENT: "make its folder first, or choose another -o",
    errno.EROFS: "choose another -o",
    errno.EACCES: "choose another -o, or check the permissions of its folder",
}


def refusal(path: Path, error: OSError) -> str:
    """The sentence about an output that the operating system refuses: what, why, what next."""
    if isinstance(error, UntrustedError):
        return f"cannot write {path}: {error.strerror}; choose another -o"
    remedy = _REMEDIES.get(error.errno or 0, "choose another -o or free some space")
    # Arrow gives the number of the error and words of its own around it.
    reason = os.strerror(error.errno) if error.errno else str(error)
    return f"cannot write {path}: {reason}; {remedy}"


def refuse_existing(path: Path, *, force: bool) -> None:
    """Refuse before the work is done.

    Raises OutputExistsError, or ExportError for an impossible path.
    """
    if path.is_dir():
        raise ExportError(f"{path} is a directory; give the name of a file, such as run.pftrace")
    if path.exists() and not force:
        raise OutputExistsError(f"{path} exists; pass --force to replace it, or another -o")
    if not path.parent.is_dir():
        error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        raise ExportError(refusal(path, error))


@contextlib.contextmanager
def replacing(path: Path, *, force: bool) -> Iterator[IO[bytes]]:
    """A binary file that becomes `path` when the block succeeds; gzipped if the name ends in .gz.

    Raises OutputExistsError when `path` exists and not `force`, ExportError when the disk refuses.
    Then nothing of the new file is left, and an old file at `path` is untouched.
    """
    refuse_existing(path, force=force)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(new_file_in(path.parent, temporary.name, 0o666), "wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0) as packed:
                    yield packed  # type: ignore[misc]
            else:
                yield raw
        temporary.replace(path)
    except OSError as error:
        raise ExportError(refusal(path, error)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError while writing `path` into one sentence."""
    try:
        yield
    except OSError as error:
        raise CaptureError(refusal(path, error)) from error


@contextlib.contextmanager
def completing(path: Path) -> Iterator[Path]:
    """Another path for the contents of `path`, which gets its name when the block succeeds.

    Otherwise nothing is left: a disk that is full needs no half-written file. Several threads and
    processes may write the same file at once. Raises CaptureError.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{get_ident()}.tmp")
    with writing(path):
        try:
            new = OwnDescriptor(new_file(temporary, 0o666))
            try:
                itself = Path(f"/proc/self/fd/{new.number}")
                yield itself if itself.exists() else temporary
            finally:
                new.close()
            move(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                remove(temporary)
            raise


def write_json(path: Path, value: object) -> None:
    """Write a struct as JSON for people, too; raises CaptureError."""
    with completing(path) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1))
