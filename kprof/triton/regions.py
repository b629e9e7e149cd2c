"""Regions for Triton kernels: read from a regions.h, or declared in Python.

regions = kp.Regions()
COPY = regions.define("copy", category="compute", bytes=32)       # a global that kernels may use
regions = kp.Regions("regions.h")                                  # kernels use regions.R_COPY
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import triton.language as tl

from kprof.region_places import place
from kprof.regions import (
    Category,
    FlowRule,
    Kind,
    Moment,
    Region,
    RegionTable,
    parse_fields,
    read_header,
    without_places,
    word_of,
)


class Regions:
    """A growing region table, and its ids for kernels: `tl.constexpr` globals, or attributes named
    as in regions.h.

    Raises RegionError for a file that cannot be read or parsed.
    """

    # Kernels may only use globals of Triton's own types.
    __triton_builtin__ = True

    def __init__(self, path: str | Path | None = None) -> None:
        self.table = RegionTable()
        self._regions: dict[str, tl.constexpr] = {}
        if path is not None:
            self.table, ids = read_header(path)
            bare = without_places(self.table)
            self._regions = {name: tl.constexpr(bare[ids[name]]) for name in ids}

    def define(
        self,
        name: str,
        *,
        category: str = "other",
        kind: str = "span",
        moment: str = "issue",
        **bits_of_field: int,
    ) -> tl.constexpr:
        """Declares a region and returns its id for kernels. `peer=8, slot=24` are payload fields
        and their bits.

        Its place is the line of this call. Raises RegionError if the name is taken, a word is
        unknown, or the fields need more than 32 bits.
        """
        where = f"region {name!r}"
        caller = sys._getframe(1)
        fields = parse_fields(
            ", ".join(f"{key}:{bits}" for key, bits in bits_of_field.items()), where
        )
        region = Region(
            len(self.table) + 1,
            name,
            word_of(category, Category, where),
            word_of(kind, Kind, where),
            fields,
            word_of(moment, Moment, where),
            place(caller.f_code.co_filename, caller.f_lineno),
        )
        self.table = RegionTable((*self.table.regions, region), self.table.flows)
        return tl.constexpr(without_places(self.table)[region.id])

    def move(self, name: str, file: str, line: int) -> None:
        """Name the line of a region that stands elsewhere than where it was defined."""
        moved = msgspec.structs.replace(self.table.by_name(name), place=place(file, line))
        regions = list(self.table.regions)
        regions[moved.id - 1] = moved
        self.table = RegionTable(tuple(regions), self.table.flows)

    def flow(self, send: tl.constexpr, wait: tl.constexpr) -> None:
        """Spans of `send` release spans of `wait` with the same source, destination and slot.

        Raises RegionError.
        """
        rule = FlowRule(send.value.id, wait.value.id)
        self.table = RegionTable(self.table.regions, (*self.table.flows, rule))

    def __getattr__(self, name: str) -> Any:
        regions = self.__dict__.get("_regions", {})
        if name in regions:
            return regions[name]
        raise AttributeError(
            f"unknown region {name}; the region file declares {', '.join(regions) or 'none'}"
        )
