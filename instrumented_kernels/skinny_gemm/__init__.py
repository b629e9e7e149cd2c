"""skinny_gemm: up to 32 tokens times fp8 weights; a ladder of variants instrumented with kprof.

See README.md for what their traces show; `instrumented_kernels.ops` has it as an operator of torch.
"""

from instrumented_kernels.skinny_gemm.plan import Plan, Roles

__all__ = ["Plan", "Roles"]
