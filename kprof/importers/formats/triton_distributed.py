"""Triton-distributed's ProfilerBuffer: a bit for starts, and a table of blocks and SMs."""

from __future__ import annotations

from typing import Final

from kprof.importers.slots import Bits, Layout, slots_format

FORMAT: Final = slots_format(
    Layout(
        event=Bits(1, 11),
        track=Bits(12, 20),
        is_start_bit=True,
        empty=0x7FFF_FFFF_FFFF_FFFF,
        has_table=True,
    ),
    0.9,
)
