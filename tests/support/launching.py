"""What a recorder does to tell of a launch, for tests without one."""

from __future__ import annotations

from pathlib import Path

from kprof.capture.journal import Kernel, say
from kprof.hangs.lines import WaitsWriter
from kprof.rank_memory import NUM_RECENT, RECENT_BYTES, pack_recent
from kprof.regions import RegionTable


def tell_launch(
    directory: Path,
    writer: WaitsWriter,
    number: int,
    name: str,
    regions: RegionTable,
    *,
    rank: int = 0,
    kernel: int = 0,
    ordinal: int = 0,
    num_blocks: int = 0,
) -> None:
    """Launch `number` of a rank is about to be made: call `ordinal` of its kernel number `kernel`."""
    say(directory, rank, Kernel(name, regions, kernel))
    place = number % NUM_RECENT * RECENT_BYTES
    pack_recent(writer.recent, place, kernel, num_blocks, ordinal, number + 1)
