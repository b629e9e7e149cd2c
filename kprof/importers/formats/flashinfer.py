"""FlashInfer's profiler since 2026: the tag holds the block and the SM."""

from __future__ import annotations

from typing import Final

from kprof.importers.slots import Bits, Layout, slots_format

FORMAT: Final = slots_format(
    Layout(event=Bits(2, 10), track=Bits(12, 12), is_block=True, sm=Bits(24, 8)), 0.9
)
