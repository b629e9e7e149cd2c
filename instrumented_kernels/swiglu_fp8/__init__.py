"""swiglu_fp8: SwiGLU and fp8 in one pass; a ladder of variants instrumented with kprof.

See README.md for what their traces show; `instrumented_kernels.ops` has it as an operator of torch.
"""

from instrumented_kernels.swiglu_fp8.plan import Plan, reference

__all__ = ["Plan", "reference"]
