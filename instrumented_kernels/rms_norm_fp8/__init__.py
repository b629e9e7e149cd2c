"""rms_norm_fp8: residual, RMS norm and fp8 in one pass; a ladder of variants instrumented with
kprof.

See README.md for what their traces show; `instrumented_kernels.ops` has it as an operator of torch.
"""

from instrumented_kernels.rms_norm_fp8.plan import Normalised, Plan, reference

__all__ = ["Normalised", "Plan", "reference"]
