"""All-reduce: the sum of all ranks' tensors, bitwise the same everywhere; a ladder of variants
instrumented with kprof.

`all_reduce` is the call, `Plan` owns the memory of one group of ranks; see README.md for what their
traces show.
"""

from instrumented_kernels.all_reduce.calls import all_reduce, close_plans, wait
from instrumented_kernels.all_reduce.plan import HeapSizes, Plan
from instrumented_kernels.call_ledger import DifferentCallsError, PeerError, PeerTimeoutError

__all__ = [
    "DifferentCallsError",
    "HeapSizes",
    "PeerError",
    "PeerTimeoutError",
    "Plan",
    "all_reduce",
    "close_plans",
    "wait",
]
