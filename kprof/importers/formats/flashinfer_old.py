"""FlashInfer's profiler before 2026, warpscope and TVM TIRx: the tag holds the block and group."""

from __future__ import annotations

from typing import Final

from kprof.importers.slots import Bits, Layout, slots_format

FORMAT: Final = slots_format(Layout(event=Bits(2, 10), track=Bits(12, 20)), 0.85)
