"""What a recorder does to tell of a launch, for tests without one."""

from __future__ import annotations

from kprof.hangs.lines import WaitsWriter
from kprof.rank_memory import NUM_RECENT, RECENT_BYTES, pack_recent
from kprof.regions import RegionTable


def tell_launch(
    writer: WaitsWriter,
    number: int,
    name: str,
    regions: RegionTable,
    *,
    kernel: int = 0,
    ordinal: int = 0,
    num_blocks: int = 0,
) -> None:
    """Launch `number` of a rank is about to be made: call `ordinal` of its kernel number `kernel`."""
    writer.introduce(kernel, name, regions)
    place = number % NUM_RECENT * RECENT_BYTES
    pack_recent(writer.recent, place, kernel, num_blocks, ordinal, number + 1)
