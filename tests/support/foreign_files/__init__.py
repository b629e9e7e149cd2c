"""Small files of other tools, and a second, slow reader of each, written from their layouts alone.

A module per format has `make(folder)`, which returns the files of one import, and `read(files)`, which returns what is in them
as rows. It shares no code with `kprof.importers`.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

DATA = Path(__file__).parents[2] / "data" / "imports"


class Row(NamedTuple):
    """One span or instant; times in ns, `start_ns` from the first of all rows."""

    rank: int
    block: int
    warp: int
    region: str
    start_ns: int
    duration_ns: int


def modules() -> dict[str, ModuleType]:
    """The formats by name."""
    return {
        found.name: importlib.import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
        if found.name not in ("mutations", "slots")
    }


def from_first(rows: list[Row]) -> list[Row]:
    """Rows in order, with times from the first of them."""
    first = min(row.start_ns for row in rows)
    return sorted(row._replace(start_ns=row.start_ns - first) for row in rows)
