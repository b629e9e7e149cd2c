"""Makes a capture of a recording whose `kprof record` was killed or had a full disk."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from kprof.capture import directory as capture
from kprof.capture.claims import leave_message, ranks_in_use
from kprof.capture.directory import Capture
from kprof.capture.files import check_recording
from kprof.capture.journal import RESERVED_BYTES, Begun, said
from kprof.capture.losses import name_ranks
from kprof.capture.manifest import Manifest
from kprof.capture.names import (
    MANIFEST_NAME,
    SAID_NAME,
    UNFINISHED_SUFFIX,
    finished_of,
    unfinished_of,
)
from kprof.capture.output import writing
from kprof.capture.shared_memory import (
    COPY_NAME,
    OWNER_NAME,
    discard,
    discard_copy,
    find_folders,
    is_copy,
    make_memory,
)
from kprof.capture.started import read_ranks_started
from kprof.errors import CorruptCaptureError, NotACaptureError, OutputExistsError, require
from kprof.nccl.ring import RING_NAMES
from kprof.private import copy_plain, is_locked, new_file, try_lock
from kprof.recording.finishing.finishing import keeping, make_manifest

# Any of these is left of a recording, however damaged it is.
_NAMES: Final = (SAID_NAME, MANIFEST_NAME)
_TRACES: Final = (*_NAMES, "rank-*", "part-*", RING_NAMES)


def recover(path: Path, output: Path | None = None, *, force: bool = False) -> Capture:
    """Make a capture of `run.kprof.unfinished` (its `run.kprof` may be named instead); the
    directory becomes it.

    Raises NotACaptureError (no such recording), OutputExistsError (it is still running, or the
    output exists), WorkloadError (no rank left anything) and CaptureError.
    """
    directory = _unfinished(path)
    require("pyarrow", "making a capture")
    output = output or finished_of(directory)
    if output == directory:
        raise OutputExistsError(f"give the recovered capture a name: -o {directory}.kprof")
    check_recording(directory)
    _refuse_others(directory)
    capture.refuse_output(output, force)
    with locked(directory):
        refuse_open_ranks(directory)
        with keeping(directory, output), _beside(output, directory) as place:
            manifest = _finished_manifest(place) or make_manifest(place, _begun(place), None)
            return capture.finish_capture(place, output, manifest, force=force)


def _refuse_others(directory: Path) -> None:
    """Raises NotACaptureError for a folder of something else, before anything is written there."""
    has_traces = any(path.is_file() for name in _TRACES for path in directory.glob(name))
    if not has_traces and any(directory.iterdir()):
        raise NotACaptureError(
            f"{directory} holds nothing of a recording; give the directory that a recording left"
        )


def _finished_manifest(place: Path) -> Manifest | None:
    """What an earlier attempt has written last; a damaged one is made again of the files."""
    if not (place / MANIFEST_NAME).exists():
        return None
    with contextlib.suppress(CorruptCaptureError):
        return capture.read_manifest(place)
    return None


def _begun(place: Path) -> Begun:
    """What the recording was asked to do; a message where the journal does not say it."""
    size_bytes = 0
    with contextlib.suppress(OSError):
        size_bytes = (place / SAID_NAME).stat().st_size
    begun = next(iter(said(place, None, Begun)), None)
    if begun is None or size_bytes < RESERVED_BYTES:
        unknown = "the command, how many ranks it was to have and what was lost may not be known"
        leave_message(place, f"{SAID_NAME} is damaged, cut or missing: {unknown}")
    return begun or Begun((), now_utc(), 1)


@contextlib.contextmanager
def _beside(output: Path, directory: Path) -> Iterator[Path]:
    """The directory, or a copy of it in the output's folder: its own disk may be full. The
    directory goes when the block succeeds."""
    with writing(output):
        if output.absolute().parent.samefile(directory.parent):
            yield directory
            return
        _remove_left_copies(output)
        place = output.with_name(f"{output.name}.{os.getpid()}.tmp")
        place.mkdir(mode=0o700)
        try:
            with locked(place):
                os.close(new_file(place / COPY_NAME))
                if (directory / SAID_NAME).exists():
                    copy_plain(directory / SAID_NAME, place / SAID_NAME)
                # Whoever cleans memory finds the copy by it.
                make_memory(place)
                _copy(directory, place)
                yield place
        finally:
            discard_copy(place)
        discard(directory)


def _remove_left_copies(output: Path) -> None:
    """Remove what a killed `kprof recover` into this output has left."""
    for place in output.parent.glob(f"{glob.escape(output.name)}.*.tmp"):
        if is_copy(place) and not is_locked(place):
            discard_copy(place)
        elif place.is_dir() and not place.is_symlink():
            # It was killed before it had begun, if it is empty.
            with contextlib.suppress(OSError):
                place.rmdir()


def _copy(directory: Path, place: Path) -> None:
    """Copy the files of a recording, and those of its memory as if there had been none."""
    for folder in reversed(find_folders(directory)):
        for path in folder.iterdir():
            if path.is_file() and path.name not in (SAID_NAME, COPY_NAME, OWNER_NAME):
                copy_plain(path, place / path.name)


def now_utc() -> str:
    """The time of day, as manifests have it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Finish this directory alone; raises OutputExistsError when `kprof record` is still there."""
    lock = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not try_lock(lock):
            raise OutputExistsError(
                f"another recording into {directory} is running; wait for its end or choose "
                "another output"
            )
        yield
    finally:
        os.close(lock)


def refuse_open_ranks(directory: Path) -> None:
    """Raises OutputExistsError when a living rank may still write into the directory."""
    ranks = ranks_in_use(directory)
    if ranks:
        started = read_ranks_started(directory)
        pids = [entry.pid for entry in started if entry.rank in ranks]
        write, their, them = (
            ("writes", "its", "it") if len(ranks) == 1 else ("write", "their", "them")
        )
        raise OutputExistsError(
            f"{name_ranks(ranks)}{in_brackets(pids)} still {write} into {directory}; "
            f"wait for {their} end or stop {them}, then try again"
        )


def in_brackets(pids: Sequence[int]) -> str:
    """` (processes 17, 18)`; empty where none is known."""
    named = ", ".join(map(str, pids))
    return f" (process{'es' if len(pids) > 1 else ''} {named})" if pids else ""


def _unfinished(path: Path) -> Path:
    """The directory that is meant."""
    path = path if path.name else path.absolute()
    beside = unfinished_of(path)
    if beside.is_dir():
        return beside
    if not path.is_dir():
        raise NotACaptureError(
            f"{path} does not exist; give the directory that a recording left: "
            f"run.kprof{UNFINISHED_SUFFIX}"
        )
    if (path / MANIFEST_NAME).exists() and not path.name.endswith(UNFINISHED_SUFFIX):
        raise NotACaptureError(
            f"{path} is finished, there is nothing to recover: kprof report {path}"
        )
    return path
