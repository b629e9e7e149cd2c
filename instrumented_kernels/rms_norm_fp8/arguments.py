"""The arguments of an rms_norm_fp8 call, declared for Python and for the kernels (arguments.h)."""

from __future__ import annotations

from typing import Final

from instrumented_kernels.layouts import f32, layout, local_call_arguments, pointer, u32

# The longest row, in elements, that `shared` keeps in shared memory.
KEPT_ELEMENTS: Final = 16384

Shape = layout("Shape", "What a call works on.", u32("num_rows"), u32("row_length", "d"))

CallArguments = local_call_arguments(
    "One call.",
    Shape,
    u32("team_warps", "that work on a row"),
    u32("is_whole", "addresses and rows suit 16-byte vectors"),
    f32("scale", "of the fp8 values"),
    f32("epsilon"),
    pointer("x", "const void", "[n, d]"),
    pointer("residual", "const void", "[n, d]"),
    pointer("weight", "const void", "[d]"),
    pointer("sum", "void", "[n, d]: x + residual; may be either of them"),
    pointer("y", "uint8_t", "[n, d] fp8"),
)

CONSTANTS: Final = {"kKeptElements": KEPT_ELEMENTS}
