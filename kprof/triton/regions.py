"""Regions for Triton kernels: read from a regions.h, or declared in Python.

regions = kp.Regions()
COPY = regions.define("copy", category="compute", bytes=32)       # a global that kernels may use
regions = kp.Regions("regions.h")                                  # kernels use regions.R_COPY
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import triton.language as tl

from kprof.regions import (
    Category,
    FlowRule,
    Kind,
    Moment,
    Region,
    RegionTable,
    parse_fields,
    read_header,
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
            self._regions = {name: tl.constexpr(self.table[ids[name]]) for name in ids}

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

        Raises RegionError if the name is taken, a word is unknown, or the fields need more than 32
        bits.
        """
        where = f"region {name!r}"
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
        )
        self.table = RegionTable((*self.table.regions, region), self.table.flows)
        return tl.constexpr(region)

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
