"""The fastest variant and grid by size, from tuned.json, which a benchmark writes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T")

TABLE_FILE: Final = Path(__file__).parent / "tuned.json"


@dataclass(frozen=True)
class TunedGrid:
    """Blocks, and warps of 32 lanes each. Targets with wider warps use the same number of
    threads."""

    num_blocks: int
    warps_per_block: int


# For variants that are not tuned, because they exist for their traces.
_UNTUNED: Final = TunedGrid(16, 16)


@dataclass(frozen=True)
class Tuning:
    """What was fastest for a number of ranks. Sizes are tensor bytes, ascending.

    `variants`: (largest size, variant); `grids`: by variant, (largest size, grid). The last entry
    also serves all larger sizes. If only `measured_ranks` were measured, not `num_ranks`, sizes are
    converted to those at which the measured ranks have the same work.
    """

    variants: tuple[tuple[int, str], ...]
    grids: dict[str, tuple[tuple[int, TunedGrid], ...]]
    num_ranks: int
    measured_ranks: int

    def variant(self, num_bytes: int) -> str:
        """The fastest variant for this size."""
        saved = _bytes_saved_by_slices(self.measured_ranks)
        ratio = _bytes_saved_by_slices(self.num_ranks) / saved if saved else 1.0
        return str(_entry(self.variants, num_bytes * ratio))

    def grid(self, variant: str, num_bytes: int) -> TunedGrid:
        """The fastest grid of a variant for a tensor of this size."""
        ratio = self.measured_ranks / self.num_ranks if variant.startswith("twoshot") else 1.0
        found: TunedGrid = _entry(self.grids.get(variant, ((0, _UNTUNED),)), num_bytes * ratio)
        return found


def _bytes_saved_by_slices(num_ranks: int) -> float:
    """What two trips of slices save per rank and byte of the tensor: they send 2 (W - 1) / W
    instead of W - 1.

    With two ranks they save nothing, and the second trip only costs time.
    """
    return (num_ranks - 1) * max(0.0, 1 - 2 / num_ranks)


def _entry(table: tuple[tuple[int, T], ...], num_bytes: float) -> T:
    return next((value for limit, value in table if num_bytes <= limit), table[-1][1])


@cache
def tuning_for(world_size: int) -> Tuning:
    """The tuning for this number of ranks, from the measured number with the closest ratio."""
    return tuning_from(read_table(), world_size)


def read_table() -> dict[str, Any]:
    """The measurements by number of ranks: `variants` and `grids` as in Tuning."""
    tables: dict[str, Any] = json.loads(TABLE_FILE.read_text())["by_world_size"]
    return tables


def tuning_from(tables: dict[str, Any], world_size: int) -> Tuning:
    """The same from other measurements."""
    measured = min(map(int, tables), key=lambda ranks: (abs(math.log(ranks / world_size)), ranks))
    table = tables[str(measured)]
    return Tuning(
        tuple((int(limit), str(variant)) for limit, variant in table["variants"]),
        {
            variant: tuple(
                (int(limit), TunedGrid(int(blocks), int(warps))) for limit, blocks, warps in entries
            )
            for variant, entries in table["grids"].items()
        },
        world_size,
        measured,
    )


def write_table(output: Path, world_size: int, variants: list[Any], grids: dict[str, Any]) -> None:
    """Write all known measurements to `output`, with those for this number of ranks replaced."""
    tables = read_table() | {str(world_size): {"variants": variants, "grids": grids}}
    in_order = dict(sorted(tables.items(), key=lambda item: int(item[0])))
    output.write_text(json.dumps({"by_world_size": in_order}) + "\n")
