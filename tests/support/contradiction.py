"""A trace whose records contradict each other, as in damaged captures."""

from __future__ import annotations

from kprof.trace import Trace
from synthetic import TraceBuilder

REGIONS = """
REGION(SEND, "send", send, peer:8, slot:24)
REGION(WAIT, "wait", wait, peer:8, slot:24)
REGION(BARRIER, "barrier", sync)
FLOW(SEND, WAIT)
"""


def trace_with_a_circle() -> Trace:
    """Rank 1 leaves its last barrier before rank 0 enters it, and rank 0 enters it after data that
    rank 1 sends later.
    """
    build = TraceBuilder(REGIONS, 2)
    for turn in range(20):
        for rank in (0, 1):
            build.span(rank=rank, region="barrier", start_ns=100 * turn, duration_ns=80)
    build.span(rank=0, region="wait", start_ns=2000, duration_ns=50, peer=1, slot=0)
    build.span(rank=0, region="barrier", start_ns=2050, duration_ns=10)
    build.span(rank=1, region="barrier", start_ns=2000, duration_ns=10)
    build.span(rank=1, region="send", start_ns=2020, duration_ns=10, peer=0, slot=0)
    return build.trace()
