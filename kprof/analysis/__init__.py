"""Analyses: functions from a trace's Summary to a small table, computed by DuckDB.

    summary = Summary.of(Trace.open("run.kprof"))
    late_sender(summary)

Each function's docstring has definitions, units and error bounds. `findings` turns tables into
sentences.
"""

import importlib
import pkgutil
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kprof.analysis.achieved import achieved_by_link, achieved_by_processor, achieved_by_region
from kprof.analysis.balance import efficiency, imbalance, launch_efficiency, rank_efficiency
from kprof.analysis.barriers import barrier_waits
from kprof.analysis.calls import Call, calls, launch_skew, launch_starts, typical_call
from kprof.analysis.comparison import MIN_LAUNCHES, diff
from kprof.analysis.durations import block_time_ns, histogram, stats
from kprof.analysis.edges import bandwidth, ramp_and_tail, stalls
from kprof.analysis.findings import (
    Doubt,
    DoubtKind,
    Finding,
    Findings,
    Limit,
    Part,
    breakdown,
    find,
)
from kprof.analysis.findings.kinds import all_kinds
from kprof.analysis.metric import METRICS, metric
from kprof.analysis.replay.critical_path import critical_path, critical_regions, delay_costs
from kprof.analysis.replay.what_if import what_if
from kprof.analysis.summary import Summary, Table
from kprof.analysis.waiting import (
    blame,
    blame_matrix,
    late_sender,
    stragglers,
    unmatched_flows,
    waits,
)

__all__ = [
    "MIN_LAUNCHES",
    "Call",
    "Doubt",
    "DoubtKind",
    "Finding",
    "Findings",
    "Limit",
    "Part",
    "Summary",
    "achieved_by_link",
    "achieved_by_processor",
    "achieved_by_region",
    "all_metrics",
    "bandwidth",
    "barrier_waits",
    "blame",
    "blame_matrix",
    "block_time_ns",
    "breakdown",
    "calls",
    "critical_path",
    "critical_regions",
    "delay_costs",
    "diff",
    "efficiency",
    "find",
    "histogram",
    "imbalance",
    "late_sender",
    "launch_efficiency",
    "launch_skew",
    "launch_starts",
    "metric",
    "ramp_and_tail",
    "rank_efficiency",
    "stalls",
    "stats",
    "stragglers",
    "typical_call",
    "unmatched_flows",
    "waits",
    "what_if",
]


def all_metrics() -> "dict[str, Callable[[Summary], Table]]":
    """Every metric in kprof.analysis, by name."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    return dict(sorted(METRICS.items()))


def __getattr__(name: str) -> Any:
    """FindingKind, as it was before kinds had files: works until version 0.2."""
    if name != "FindingKind":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        "kprof.analysis.FindingKind goes with version 0.2: compare finding.kind.name with a name, "
        'such as "slow"',
        DeprecationWarning,
        stacklevel=2,
    )
    return SimpleNamespace(**{kind.name.upper(): kind for kind in all_kinds()})
