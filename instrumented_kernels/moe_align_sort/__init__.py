"""moe_align_sort: token ids by expert for a grouped GEMM; a ladder of variants instrumented with
kprof.

See README.md for what their traces show; `instrumented_kernels.ops` has it as an operator of torch.
"""

from instrumented_kernels.moe_align_sort.plan import Plan, Sorted, reference

__all__ = ["Plan", "Sorted", "reference"]
