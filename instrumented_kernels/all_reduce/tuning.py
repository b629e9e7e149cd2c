"""Which variant and how many blocks are fastest: looked up by size in tuned.json, which a benchmark measures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

TABLE_FILE: Final = Path(__file__).parent / "tuned.json"


@dataclass(frozen=True)
class TunedGrid:
    """Blocks, and warps of 32 lanes in each (a target with wider warps takes the same number of threads)."""

    num_blocks: int
    warps_per_block: int


# For variants that were never tuned, because they are there to be looked at.
_UNTUNED: Final = TunedGrid(16, 16)


@dataclass(frozen=True)
class Tuning:
    """What was fastest for a number of ranks; sizes are in bytes of the tensor, in rising order.

    `variants`: (largest size, variant); `grids`: by variant, (largest size, grid). The last entry also serves all
    larger sizes.
    """

    variants: tuple[tuple[int, str], ...]
    grids: dict[str, tuple[tuple[int, TunedGrid], ...]]

    def variant(self, num_bytes: int) -> str:
        """The fastest variant for a tensor of this size."""
        return str(_entry(self.variants, num_bytes))

    def grid(self, variant: str, num_bytes: int) -> TunedGrid:
        """The fastest grid of a variant for a tensor of this size."""
        found: TunedGrid = _entry(self.grids.get(variant, ((0, _UNTUNED),)), num_bytes)
        return found


def _entry(table: tuple[tuple[int, Any], ...], num_bytes: int) -> Any:
    return next((value for limit, value in table if num_bytes <= limit), table[-1][1])


@cache
def tuning_for(world_size: int) -> Tuning:
    """The tuning of the measured number of ranks that is closest."""
    tables = json.loads(TABLE_FILE.read_text())["by_world_size"]
    closest = min(tables, key=lambda measured: (abs(int(measured) - world_size), int(measured)))
    table = tables[closest]
    return Tuning(
        tuple((int(limit), str(variant)) for limit, variant in table["variants"]),
        {
            variant: tuple(
                (int(limit), TunedGrid(int(blocks), int(warps))) for limit, blocks, warps in entries
            )
            for variant, entries in table["grids"].items()
        },
    )
