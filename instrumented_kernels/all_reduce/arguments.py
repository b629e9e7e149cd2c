"""The arguments of an all-reduce call, declared for Python and for the kernels (arguments.h)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from instrumented_kernels.layouts import call_arguments, layout, pointer, u32

# Limits of the regions' payload fields and of the flags per source.
MAX_BLOCKS: Final = 254


class GridRule(IntEnum):
    """The grid that a variant is made for."""

    ANY_GRID = 0
    ONE_BLOCK = 1
    BLOCK_PER_RANK = 2


Shape = layout(
    "Shape",
    "What the memory of a plan is made for.",
    u32("world_size"),
    u32("packet_bytes", "of the heap, for one parity"),
    u32("bulk_bytes", "of the heap, for one parity"),
)

CallArguments = call_arguments(
    "One call on one rank. Nothing in it changes from call to call on the same tensor.",
    Shape,
    u32("num_elements"),
    pointer("input", "const void"),
    pointer("output", "void", "may be the input; no other overlap"),
)

CONSTANTS: Final = {"kMaxBlocks": MAX_BLOCKS}
ENUMS: Final = (GridRule,)
