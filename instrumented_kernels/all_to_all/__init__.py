"""All-to-all for mixture-of-experts: dispatch, a stand-in for the expert, combine; instrumented with kprof.

`Plan` owns the memory of one group of ranks and runs calls; see README.md for what its trace shows.
"""

from instrumented_kernels.all_to_all.plan import Dispatched, Plan, Problem
from instrumented_kernels.team_memory import PeerTimeoutError

__all__ = ["Dispatched", "PeerTimeoutError", "Plan", "Problem"]
