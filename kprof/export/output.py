"""The output file: written under a temporary name, renamed when complete, one sentence when it cannot be
written."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from kprof.errors import ExportError, OutputExistsError

# Level 1 takes a third of the time of the default level for a tenth more bytes.
_GZIP_LEVEL: Final = 1


@contextlib.contextmanager
def replacing(path: Path, force: bool) -> Iterator[IO[bytes]]:
    """A binary file that becomes `path` when the block ends well, gzipped for a name that ends in .gz.

    Raises OutputExistsError when `path` exists and not `force`, ExportError when the disk refuses; then
    nothing of the new file is left, and an old file at `path` is untouched.
    """
    if path.exists() and not force:
        raise OutputExistsError(f"{path} exists; pass --force to replace it, or another -o")
    if path.is_dir():
        raise ExportError(f"{path} is a directory; give the name of a file, such as run.pftrace")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0) as packed:
                    yield packed  # type: ignore[misc]
            else:
                yield raw
        temporary.replace(path)
    except OSError as error:
        raise ExportError(
            f"cannot write {path}: {error.strerror or error}; choose another -o or free some space"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
