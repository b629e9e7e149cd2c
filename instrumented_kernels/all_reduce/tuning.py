"""The fastest variant and grid by size, from tuned.json, which a benchmark writes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

TABLE_FILE: Final = Path(__file__).parent / "tuned.json"


class TunedGrid(NamedTuple):
    """Blocks, and warps of 32 lanes each. Targets with wider warps use the same number of
    threads."""

    num_blocks: int
    warps_per_block: int


# For variants that are not tuned, because they exist for their traces.
_UNTUNED: Final = TunedGrid(16, 16)


@dataclass(frozen=True)
class Tuning:
    """What was fastest for a number of ranks, by tensor bytes.

    `table["variants"]` has (largest size, variant), and `table["grids"]`, by variant, (largest
    size, blocks, warps), ascending. The last entry also serves all larger sizes. If only
    `measured_ranks` were measured, not `num_ranks`, sizes are converted to those at which the
    measured ranks have the same work.
    """

    table: dict[str, Any]
    num_ranks: int
    measured_ranks: int

    def variant(self, num_bytes: int) -> str:
        """The fastest variant for this size."""
        saved = _bytes_saved_by_slices(self.measured_ranks)
        ratio = _bytes_saved_by_slices(self.num_ranks) / saved if saved else 1.0
        return str(*_entry(self.table["variants"], num_bytes * ratio))

    def grid(self, variant: str, num_bytes: int) -> TunedGrid:
        """The fastest grid of a variant for a tensor of this size."""
        ratio = self.measured_ranks / self.num_ranks if variant.startswith("twoshot") else 1.0
        entries = self.table["grids"].get(variant)
        return TunedGrid(*_entry(entries, num_bytes * ratio)) if entries else _UNTUNED


def _bytes_saved_by_slices(num_ranks: int) -> float:
    """What two trips of slices save per rank and byte of the tensor: they send 2 (W - 1) / W
    instead of W - 1.

    With two ranks they save nothing, and the second trip only costs time.
    """
    return (num_ranks - 1) * max(0.0, 1 - 2 / num_ranks)


def _entry(entries: list[list[Any]], num_bytes: float) -> list[Any]:
    return next((found for limit, *found in entries if num_bytes <= limit), entries[-1][1:])


@cache
def tuning_for(world_size: int) -> Tuning:
    """The tuning for this number of ranks, from the measured number with the closest ratio."""
    return tuning_from(json.loads(TABLE_FILE.read_text())["by_world_size"], world_size)


def tuning_from(tables: dict[str, Any], world_size: int) -> Tuning:
    """The same from other measurements, by number of ranks."""
    measured = min(map(int, tables), key=lambda ranks: (abs(math.log(ranks / world_size)), ranks))
    return Tuning(tables[str(measured)], world_size, measured)
