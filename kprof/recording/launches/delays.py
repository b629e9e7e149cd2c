"""Delays for `kprof verify`: spans of one region last longer, at some blocks of some ranks.

`kprof verify` puts a Delays into the environment of the workload. Recorders put it into the arena
(kprof.abi), and kernels that were compiled with KPROF_DELAYS=1, or by Triton in this environment,
spin at the end of these spans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kprof import abi
from kprof.capture.manifest import ClockInfo
from kprof.recording.launches.launch_log import LaunchLog
from kprof.recording.launches.region_ids import RegionIds

_MANTISSA: Final = (1 << abi.DELAY_MANTISSA_BITS) - 1
_MOST_SHIFT: Final = (1 << (abi.DELAY_BITS - abi.DELAY_MANTISSA_BITS)) - 1
_MOST_TICKS: Final = (1 << 32) - 1


@dataclass(frozen=True)
class Delays:
    """What is delayed: the spans of `region`, by `delay_ns` each (0: none), in every `every`-th
    launch of a rank. `blocks` has ranges [first, end) of blocks by rank."""

    region: str = ""
    delay_ns: float = 0.0
    blocks: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    every: int = 1

    def begin(
        self,
        rank: int,
        clock: ClockInfo,
        store: Callable[[np.ndarray], None],
        launches: LaunchLog,
        note: Callable[[str], None],
        is_capturing: Callable[[], bool],
    ) -> None:
        """Delay a rank: `store` puts an `abi.DELAYS` into its arenas."""
        delaying = Delaying(self, rank, clock.ticks_per_second, store, note, is_capturing)
        delaying.introduce(0, "", 0, launches.region_ids)
        launches.introducers.append(delaying.introduce)


def length_of(ticks: float) -> int:
    """The lower half of `word` for the nearest number of ticks that can be told, below 2^32."""
    whole = min(max(0, round(ticks)), _MOST_TICKS)
    shift = max(0, whole.bit_length() - abi.DELAY_MANTISSA_BITS)
    mantissa = min(_MANTISSA, (whole + (1 << shift >> 1)) >> shift)
    return min(shift, _MOST_SHIFT) << abi.DELAY_MANTISSA_BITS | mantissa


def words_of(delays: Delays, rank: int, region_id: int, ticks_per_second: float) -> np.ndarray:
    """What the arena of a rank has to say: an `abi.DELAYS`."""
    words = np.zeros((), abi.DELAYS)
    length = length_of(delays.delay_ns * ticks_per_second / 1e9)
    if not length or not region_id:
        return words
    words["word"] = region_id << abi.DELAY_BITS | length
    words["every"] = delays.every
    is_delayed = np.zeros(abi.NUM_DELAYED_BLOCKS, dtype=np.uint8)
    for first, end in delays.blocks.get(rank, ()):
        is_delayed[first:end] = 1
        words["is_beyond_delayed"] |= end > abi.NUM_DELAYED_BLOCKS
    words["blocks"] = np.packbits(is_delayed, bitorder="little").view("<u4")
    return words


@dataclass
class Delaying:
    """Finds the number that kernels give the region, and stores what they are to do.

    `names` are those of regions, by number, of every table of regions so far; `stored` is the
    number that arenas have.
    """

    delays: Delays
    rank: int
    ticks_per_second: float
    store: Callable[[np.ndarray], None]
    note: Callable[[str], None]
    is_capturing: Callable[[], bool]
    names: list[dict[int, str]] = field(default_factory=list)
    stored: int = 0

    def introduce(self, _idx: int, _kernel: str, table_idx: int, region_ids: RegionIds) -> None:
        """A kernel with these regions is about to be launched for the first time."""
        table = region_ids.table_as_merged(table_idx)
        self.names.append({region.id: region.name for region in table.regions})
        wanted = self.delays.region
        ids = {number for names in self.names for number, name in names.items() if name == wanted}
        # The arena has one number for all kernels.
        others = [names[i] for names in self.names for i in ids if names.get(i, wanted) != wanted]
        region_id = ids.pop() if len(ids) == 1 and not others else 0
        if region_id == self.stored:
            return
        if not region_id:
            self.note(f"nothing is delayed: kernels number the region {wanted} differently")
        elif self.is_capturing():
            self.note(f"nothing is delayed: a graph captures the first launch with {wanted}")
            return
        self.store(words_of(self.delays, self.rank, region_id, self.ticks_per_second))
        self.stored = region_id
