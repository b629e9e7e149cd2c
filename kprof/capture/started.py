"""Which processes record: `rank-00000.started` in an unfinished capture, by rank.

A recorder writes it when it is made, which tells a rank that died from one that never recorded.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection
from pathlib import Path

from kprof.capture.directory import rank_file, readable, write_json
from kprof.capture.manifest import RankStarted
from kprof.capture.processes import process_of


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
