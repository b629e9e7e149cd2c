"""The arguments of a skinny_gemm call, declared for Python and for the kernels (arguments.h)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from instrumented_kernels.layouts import Header, f32, layout, local_call_arguments, pointer, u32

MAX_TOKENS: Final = 32
# The most warps of a block of `ring`, by the lanes of a warp: two stages of the largest ring fit
# shared memory.
RING_WARPS: Final = {32: 8, 64: 3}

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

HEADER: Final = Header(
    Path(__file__).with_suffix(".h"),
    "skinny_gemm",
    "instrumented_kernels/skinny_gemm/arguments.py",
    (Shape, CallArguments),
    constants={f"kRingWarpsOf{lanes}": warps for lanes, warps in RING_WARPS.items()},
    includes=("shared_layouts.h",),
)
