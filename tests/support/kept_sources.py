"""Sources that tests write, in one place for all tests of a machine: a build is known by the path and the text of its source."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from kprof.devices.cache import cache_dir


def kept_source(kernel: str, regions: str = "") -> Path:
    """The path of kernel.hip with this text, beside regions.h where there are regions."""
    return kept_files({"kernel.hip": kernel} | ({"regions.h": regions} if regions else {}))


def kept_files(files: dict[str, str]) -> Path:
    """The path of kernel.hip among files with these names and texts."""
    digest = hashlib.sha256(repr(files).encode()).hexdigest()
    folder = cache_dir() / "sources-of-tests" / digest[:20]
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        # What is there stays: a compiler of another process may read it. A file that takes its place may
        # even have the number (inode) that the other one had, and clang takes them for one file.
        if not (folder / name).exists():
            temporary = folder / f"{name}-{os.getpid()}.tmp"
            temporary.write_text(text)
            with contextlib.suppress(FileExistsError):
                os.link(temporary, folder / name)
            temporary.unlink()
    return folder / "kernel.hip"
