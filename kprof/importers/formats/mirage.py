"""Mirage's persistent kernel (MPK): the tag also counts events."""

from __future__ import annotations

from typing import Final

from kprof.importers.slots import Bits, Layout, slots_format

FORMAT: Final = slots_format(Layout(event=Bits(2, 9), track=Bits(11, 8)), 0.8)
