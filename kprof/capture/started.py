"""What was started, in an unfinished capture: the request, and the processes that record.

recording.json        what was asked for, for `kprof recover` in case kprof itself is killed
rank-00000.started    the process that records a rank, written when its recorder is made: it tells
                      a rank that died from one that never recorded
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection
from pathlib import Path

import msgspec

from kprof.capture.files import MAX_JSON_BYTES, readable
from kprof.capture.manifest import RankStarted, Text, WorldSize
from kprof.capture.names import RECORDING_NAME, rank_file
from kprof.capture.output import write_json
from kprof.capture.processes import process_of
from kprof.private import read_plain


def write_rank_started(directory: Path, started: RankStarted) -> None:
    """Write `rank-NNNNN.started`, atomically."""
    write_json(rank_file(directory, started.rank, "started"), started)


def announce_rank(directory: Path, rank: int, world_size: int) -> None:
    """Say that this process records a rank."""
    process = dataclasses.astuple(process_of(os.getpid()))
    write_rank_started(directory, RankStarted(rank, world_size, *process))


def read_ranks_started(directory: Path) -> tuple[RankStarted, ...]:
    """All ranks whose recorder was created, by rank, but those whose files are damaged."""
    return tuple(readable(directory, "started", RankStarted))


def pids_here(directory: Path, ranks: Collection[int]) -> dict[int, int]:
    """The processes that record these ranks on this host, proven by their claims."""
    return {
        entry.rank: entry.pid
        for entry in read_ranks_started(directory)
        if entry.rank in ranks and entry.process.maps(rank_file(directory, entry.rank, "live"))
    }


class Begun(msgspec.Struct, frozen=True):
    """What a recording was asked to do, written before the workload starts."""

    command: tuple[Text, ...]
    created_utc: Text
    num_procs: WorldSize


def write_begun(directory: Path, begun: Begun) -> None:
    """Write `recording.json`; raises CaptureError."""
    write_json(directory / RECORDING_NAME, begun)


def read_begun(directory: Path) -> Begun | None:
    """What the recording was asked to do, or None where nobody knows."""
    try:
        content = read_plain(directory / RECORDING_NAME, MAX_JSON_BYTES)
        return msgspec.json.decode(content, type=Begun)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
