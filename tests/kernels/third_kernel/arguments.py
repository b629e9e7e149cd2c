"""What a call of the all-gather is; the test generates arguments.h from it."""

from pathlib import Path

from instrumented_kernels.layouts import Header, call_arguments, layout, pointer, u32

Shape = layout("Shape", "What the memory of a plan is made for.", u32("world_size"))
CallArguments = call_arguments(
    "One call on one rank.", Shape, u32("epoch"), u32("value"), pointer("out", "uint32_t", "[W]")
)
HEADER = Header(
    Path(__file__).with_suffix(".h"),
    "all_gather",
    "arguments.py",
    (Shape, CallArguments),
    includes=("shared_layouts.h",),
)
