"""The arguments of a moe_align_sort call, declared for Python and for the kernels (arguments.h)."""

from __future__ import annotations

from typing import Final

from instrumented_kernels.layouts import layout, local_call_arguments, pointer, u32

# An expert's count shares its word with two flags.
MAX_IDS: Final = (1 << 30) - 1
MAX_EXPERTS: Final = 1024
# Up to this many experts use the kernels with larger tiles.
FEW_EXPERTS: Final = 256

Shape = layout(
    "Shape",
    "What the memory of a call is made for.",
    u32("num_ids", "n * K"),
    u32("num_experts"),
    u32("num_slices", "parts of the ids, a block each"),
)

CallArguments = local_call_arguments(
    "One call.",
    Shape,
    u32("block_size", "B: runs of experts are padded to a multiple"),
    u32("slice_ids", "ids of a slice, of the last one fewer"),
    u32("num_sorted", "room in sorted_ids"),
    u32("num_block_experts", "room in block_experts"),
    pointer("topk_ids", "const int32_t", "[num_ids]"),
    pointer(
        "sorted_ids", "int32_t", "[num_sorted]: (token, k) by expert; num_ids where there is none"
    ),
    pointer("block_experts", "int32_t", "[num_block_experts]; -1 behind the padded total"),
    pointer("num_padded", "int32_t", "[1]"),
)

CONSTANTS: Final = {"kMaxExperts": MAX_EXPERTS, "kFewExperts": FEW_EXPERTS}
