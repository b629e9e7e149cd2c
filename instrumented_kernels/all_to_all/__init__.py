"""All-to-all for mixture-of-experts: dispatch, a placeholder for the expert, combine; instrumented
with kprof.

`all_to_all` is the call, `Plan` owns the memory of one group of ranks; see README.md for what their
traces show.
"""

from instrumented_kernels.all_to_all.calls import all_to_all, close_plans, make_plan, wait
from instrumented_kernels.all_to_all.plan import Plan
from instrumented_kernels.all_to_all.problem import Problem
from instrumented_kernels.all_to_all.torch_baseline import TorchPlan
from instrumented_kernels.call_ledger import DifferentCallsError, PeerError, PeerTimeoutError

__all__ = [
    "DifferentCallsError",
    "PeerError",
    "PeerTimeoutError",
    "Plan",
    "Problem",
    "TorchPlan",
    "all_to_all",
    "close_plans",
    "make_plan",
    "wait",
]
