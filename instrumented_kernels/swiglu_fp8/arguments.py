"""The arguments of a swiglu_fp8 call, declared for Python and for the kernels (arguments.h)."""

from __future__ import annotations

from instrumented_kernels.layouts import f32, layout, local_call_arguments, pointer, u32

Shape = layout("Shape", "What a call works on.", u32("num_rows"), u32("row_length", "d"))

CallArguments = local_call_arguments(
    "One call.",
    Shape,
    u32("blocks_per_row"),
    u32("reciprocal", "of blocks_per_row, times 2^32 - 1, rounded down"),
    u32("is_whole", "addresses and rows suit 16-byte vectors"),
    f32("scale", "of the fp8 values"),
    pointer("x", "const void", "[n, 2 d]: gate, then up"),
    pointer("y", "uint8_t", "[n, d] fp8"),
)
