"""Which processes record the ranks of an unfinished capture."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection
from pathlib import Path

from kprof.capture.journal import last_said, say
from kprof.capture.manifest import RankStarted
from kprof.capture.names import rank_file
from kprof.capture.processes import process_of


def announce_rank(directory: Path, rank: int, world_size: int) -> None:
    """Say that this process records a rank; raises CaptureError."""
    process = dataclasses.astuple(process_of(os.getpid()))
    say(directory, rank, RankStarted(rank, world_size, *process))


def read_ranks_started(directory: Path) -> tuple[RankStarted, ...]:
    """All ranks whose recorder was created, by rank, but those whose lines are damaged."""
    return tuple(last_said(directory, RankStarted).values())


def pids_here(directory: Path, ranks: Collection[int]) -> dict[int, int]:
    """The processes that record these ranks on this host, proven by their claims."""
    return {
        entry.rank: entry.pid
        for entry in read_ranks_started(directory)
        if entry.rank in ranks and entry.process.maps(rank_file(directory, entry.rank, "live"))
    }
