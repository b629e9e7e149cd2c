"""Analyses: pure functions from a Trace to a small table, run by DuckDB over the trace's views.

Definitions, units and error bounds are in each function's docstring. `findings` turns the tables into
sentences.
"""

from kprof.analysis.balance import efficiency, imbalance, launch_efficiency, rank_efficiency
from kprof.analysis.durations import block_time_ns, histogram, stats
from kprof.analysis.rules import Finding, Severity, findings
from kprof.analysis.skew import launch_skew, launch_starts
from kprof.analysis.waiting import blame, blame_matrix, late_sender, unmatched_flows, waits

__all__ = [
    "Finding",
    "Severity",
    "blame",
    "blame_matrix",
    "block_time_ns",
    "efficiency",
    "findings",
    "histogram",
    "imbalance",
    "late_sender",
    "launch_efficiency",
    "launch_skew",
    "launch_starts",
    "rank_efficiency",
    "stats",
    "unmatched_flows",
    "waits",
]
