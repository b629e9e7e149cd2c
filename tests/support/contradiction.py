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
    """Rank 1 leaves its last barrier before rank 0 enters it, and rank 0 enters it after data that rank 1 sends
    later."""
    build = TraceBuilder(REGIONS, 2)
    for turn in range(20):
        for rank in (0, 1):
            build.span(rank, "barrier", 100 * turn, 80)
    build.span(0, "wait", 2000, 50, peer=1, slot=0)
    build.span(0, "barrier", 2050, 10)
    build.span(1, "barrier", 2000, 10)
    build.span(1, "send", 2020, 10, peer=0, slot=0)
    return build.trace()
