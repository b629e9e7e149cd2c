"""The arguments of an all-to-all call, declared for Python and for the kernels (arguments.h)."""

from __future__ import annotations

from instrumented_kernels.layouts import call_arguments, layout, pointer, u32

Shape = layout(
    "Shape",
    "What the memory of a plan is made for.",
    u32("num_experts"),
    u32("top_k"),
    u32("hidden", "D, elements of a row"),
    u32("max_tokens", "M, per rank"),
    u32("world_size"),
)

CallArguments = call_arguments(
    "One call on one rank.",
    Shape,
    u32("num_tokens", "n <= M"),
    u32(
        "first_epoch",
        "the number of the call, from 1; with `is_counted` that of the first counted one",
    ),
    u32("is_counted", "whether calls are counted on the device, as in a graph"),
    pointer("x", "const uint16_t", "fp16 [n, D]"),
    pointer("indices", "const int32_t", "[n, K], distinct in a row"),
    pointer("weights", "const float", "[n, K]"),
    pointer("out", "uint16_t", "fp16 [n, D]"),
)
