"""The arguments of a skinny_gemm call, declared for Python and for the kernels (arguments.h)."""

from __future__ import annotations

from typing import Final

from instrumented_kernels.layouts import f32, layout, local_call_arguments, pointer, u32

MAX_TOKENS: Final = 32
# Blocks of `ring` with up to so many times 16 rows have few rows.
FEW_RING_TILES: Final = 2
# The most warps of a block of `ring` with few rows, and with more, by the lanes of a warp: two
# stages of the largest ring fit shared memory.
RING_WARPS: Final = {32: (8, 4), 64: (3, 3)}
# Blocks of `groups` with up to so many rows have few rows.
FEW_GROUP_ROWS: Final = 32
# Groups of four warps of a block of `groups` with few rows, and with more, by the lanes of a warp.
GROUPS: Final = {32: (4, 2), 64: (1, 1)}

Shape = layout(
    "Shape",
    "What a call works on.",
    u32("num_tokens", "M"),
    u32("num_rows", "N"),
    u32("depth", "K"),
)

CallArguments = local_call_arguments(
    "One call.",
    Shape,
    u32("is_whole", "addresses and rows suit 16-byte vectors"),
    u32("num_producers", "warps that load weights, of `specialised` and `tuned`"),
    u32("num_token_producers", "warps that load tokens, of these"),
    u32("num_slots", "of the queue of these"),
    f32("scale", "of the results"),
    pointer("tokens", "const uint8_t", "[M, K] fp8"),
    pointer("weights", "const uint8_t", "[N, K] fp8"),
    pointer("out", "uint16_t", "[M, N] fp16"),
)

CONSTANTS: Final = {
    "kFewRingTiles": FEW_RING_TILES,
    "kRingWarpsOf32": RING_WARPS[32][0],
    "kRingWarpsOf32ManyRows": RING_WARPS[32][1],
    "kRingWarpsOf64": RING_WARPS[64][0],
    "kFewGroupRows": FEW_GROUP_ROWS,
    "kGroupsOf32": GROUPS[32][0],
    "kGroupsOf32ManyRows": GROUPS[32][1],
    "kGroupsOf64": GROUPS[64][0],
}
