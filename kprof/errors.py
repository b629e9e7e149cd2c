"""Every error that kprof raises on purpose.

    KprofError                 one sentence for the user: what, where, what next
    ├── CaptureError           a run.kprof/ directory that cannot be read or written
    │   ├── NotACaptureError       the path is missing, or is something else
    │   ├── CorruptCaptureError    a manifest or Parquet file is truncated or damaged
    │   ├── NewerFormatError       written by a newer kprof
    │   ├── OutputExistsError      refusing to overwrite (pass --force)
    │   ├── UnfinishedError        a bug of ours, or the system, ended the making of a capture
    │   └── ForeignFormatError     a file to import is not what it was said to be
    ├── RegionError            a region table that cannot be used
    ├── ArenaError             a record arena that is too small or is not an arena
    ├── RecorderError          the recorder was used in a way that would lose events
    │   └── RankTakenError         another process records this rank, or did
    ├── BuildError             a kernel source could not be compiled
    ├── TargetError            the target asked for is not on this machine
    ├── WorkloadError          the recorded command could not be started, or recorded nothing
    │   └── StillRecordingError    it has ended, and ranks of it have not
    ├── ClockError             a number that needs aligned clocks, without alignment
    ├── ClusterError           a Dask cluster that cannot be reached or fails
    ├── MissingPackageError    a package that only some commands need is not installed
    ├── ExportError            an output that cannot be written
    │   └── UnknownFormatError     a suffix that names no format
    ├── ViewError              a trace that cannot be shown
    └── SelectionError         a selection or query that does not parse, or selects nothing known
        └── CallTooLargeError      one call has more events than are replayed

The CLI prints the message on one line and exits with 1, with 2 for what was typed wrong
(UnknownFormatError, SelectionError). Mistakes of our own are assertions.
"""

from __future__ import annotations

import importlib
from typing import Final

# Begins the sentence for an unexpected error. Tests search for it.
BUG_SENTENCE: Final = "kprof has a bug here"


class KprofError(Exception):
    """Base of all errors whose message is written for the user.

    `exit_code` is what the CLI exits with.
    """

    exit_code: int = 1


class CaptureError(KprofError):
    """A capture directory cannot be read or written."""


class NotACaptureError(CaptureError):
    """The path does not exist or does not hold a capture."""


class CorruptCaptureError(CaptureError):
    """A file of the capture is truncated or damaged."""


class NewerFormatError(CaptureError):
    """The capture was written by a newer format version than this kprof knows."""


class OutputExistsError(CaptureError):
    """The output exists and overwriting was not asked for."""


class UnfinishedError(CaptureError):
    """What nobody foresaw ended the making of a capture. What the ranks wrote is there."""


class ForeignFormatError(CaptureError):
    """A file to import does not hold events in the format that was named."""


class RegionError(KprofError):
    """A region table is malformed or overflows an id space."""


class ArenaError(KprofError):
    """A record arena is too small for one chunk, or its bytes are not an arena."""


class NoRoomError(ArenaError):
    """The device has no memory for a record arena of that size."""


class RecorderError(KprofError):
    """The recorder was used in a way that would lose or mix events."""


class RankTakenError(RecorderError):
    """Another process of this recording has the same rank."""


class BuildError(KprofError):
    """A kernel source could not be compiled."""


class TargetError(KprofError):
    """The requested target (cuda, hip, cpu) cannot be used on this machine."""


class WorkloadError(KprofError):
    """The recorded command could not be started, or recorded nothing.

    A failing command's exit code is kept.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class StillRecordingError(WorkloadError):
    """The recorded command has ended and ranks of it have not; the message says how to go on."""


class NothingRecordedError(WorkloadError):
    """The recorded command ended well, and there is nothing of it to keep."""


class ClockError(KprofError):
    """A cross-rank number was asked for without a valid clock alignment.

    `reason` is the same for all numbers; the message names one of them.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class ClusterError(KprofError):
    """The Dask cluster that an analysis was to run on cannot be reached, or a worker failed."""


class MissingPackageError(KprofError):
    """A package is not installed that reading a capture does without."""


def require(package: str, what: str) -> None:
    """Import a package; raises MissingPackageError where it is not installed."""
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"{what} needs {package}, which is not installed: pip install {package}"
        ) from error


class ExportError(KprofError):
    """An output file cannot be written."""


class UnknownFormatError(ExportError):
    """The name of an output file does not say a format that kprof writes."""

    exit_code = 2


class ViewError(KprofError):
    """The trace cannot be shown: no such file, or a port that cannot be used."""


class SelectionError(KprofError):
    """A selection or query does not parse or names something unknown."""

    exit_code = 2


class CallTooLargeError(SelectionError):
    """One call has more events than are replayed: `reason` says so, `remedy` what to select."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


def describe_error(error: Exception) -> str:
    """What went wrong, and what to do about it."""
    if isinstance(error, KprofError):
        return " ".join(str(error).split())
    if isinstance(error, OSError):
        return f"cannot use {error.filename or 'the output'}: {error.strerror or error}"
    if isinstance(error, UnicodeError):
        text = getattr(error, "object", "a name")
        return f"{text[:80]!r} is not UTF-8; rename the file, or save the text as UTF-8"
    if isinstance(error, MemoryError) or "failed to map segment" in str(error):
        return "not enough memory; select less, such as --ranks 0-3 or --launches 4"
    if "can't start new thread" in str(error):
        return "the system does not let this process start more threads; raise `ulimit -u`"
    return f"{BUG_SENTENCE} ({type(error).__name__}); please report it, with what --debug prints"
