"""How long waits last, and when, on a machine that may be busy: longer than their limit, on clocks less exactly aligned."""

from __future__ import annotations

import itertools
import re

from kprof.trace import Trace


def waited_s(message: str, rank: int, peer: int) -> float:
    """How long `rank` says that it waited for `peer`, in seconds: one decimal, no less than its limit."""
    found = re.match(rf"rank {rank} waited (\d+\.\d) s for rank {peer}, slot \d+, ", message)
    assert found, message
    return float(found[1])


def worst_bound_ns(trace: Trace) -> float:
    """By how much the aligned times of any two ranks may be off."""
    alignment = trace.alignment
    assert alignment is not None
    pairs = itertools.permutations([info.rank for info in trace.ranks], 2)
    return max(alignment.bound_between_ns(a, b) for a, b in pairs)
