"""Where builds are kept: a directory of this user alone, because they are loaded and run."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from kprof.private import UntrustedError, make_private

CACHE_VARIABLE: Final = "KPROF_CACHE_DIR"


def cache_dir() -> Path:
    """A directory of ours in KPROF_CACHE_DIR, else in kprof's folder in the user's cache directory.

    It is in the directory for temporary files where others could replace what is kept there.
    """
    return _own_dir(Path(os.environ.get(CACHE_VARIABLE) or _default_dir()))


def _default_dir() -> Path:
    """Users without a home directory have the one for temporary files."""
    if known := os.environ.get("XDG_CACHE_HOME"):
        return Path(known) / "kprof"
    try:
        return Path.home() / ".cache" / "kprof"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"kprof-cache-{os.geteuid()}"


def _own_dir(folder: Path) -> Path:
    own = folder / f"user-{os.geteuid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return make_private(own)
    except UntrustedError as error:
        complain(f"{error.strerror}; set {CACHE_VARIABLE} to a directory of yours")
        return _elsewhere()
    except OSError:
        # Whoever writes there says what is wrong.
        return own


def _elsewhere() -> Path:
    """In the directory for temporary files: one that is kept, unless somebody else has its name."""
    try:
        return make_private(Path(tempfile.gettempdir()) / f"kprof-cache-{os.geteuid()}")
    except OSError:
        return _of_this_process()


@functools.cache
def _of_this_process() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="kprof-cache-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def complain(text: str) -> None:
    """Say it once."""
    sys.stderr.write(f"kprof: {text}\n")
