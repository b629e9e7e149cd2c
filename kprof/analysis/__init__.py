"""Analyses: pure functions from a Trace to a small table, run by DuckDB over the trace's views.

Definitions, units and error bounds are in each function's docstring. `findings` turns the tables into
sentences.
"""

from kprof.analysis.durations import block_time_ns, histogram, stats
from kprof.analysis.balance import efficiency, imbalance, launch_efficiency, rank_efficiency
from kprof.analysis.skew import launch_skew
from kprof.analysis.waiting import blame, blame_matrix, late_sender, unmatched_flows, waits

__all__ = [
    "blame",
    "blame_matrix",
    "block_time_ns",
    "efficiency",
    "histogram",
    "imbalance",
    "late_sender",
    "launch_efficiency",
    "launch_skew",
    "rank_efficiency",
    "stats",
    "unmatched_flows",
    "waits",
]
