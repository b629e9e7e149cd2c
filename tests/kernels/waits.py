"""How long waits last, and when, on a machine that may be busy: longer than their limit, on clocks less exactly aligned."""

from __future__ import annotations

import re
from typing import Final

from widths import IS_CPU_TARGET

from kprof.trace import Trace

# Where a track records cycles, it reads both clocks, one after the other, to relate them. In the weak model a wave
# stands still at random, also between the two: for up to 600 rounds of 16 ns. All times near that reading move with it.
SPLIT_READING_NS: Final = 0.0 if IS_CPU_TARGET else 600 * 16.0


def waited_s(message: str, rank: int, peer: int) -> float:
    """How long `rank` says that it waited for `peer`, in seconds: one decimal, no less than its limit."""
    found = re.match(rf"rank {rank} waited (\d+\.\d) s for rank {peer}, slot \d+, ", message)
    assert found, message
    return float(found[1])


def worst_bound_ns(trace: Trace) -> float:
    """By how much the aligned times of any two ranks may be off, whatever the scheduler has done. The stated bound
    assumes that of many round trips some were short in both directions. A machine under load, and an emulator
    that lets waves take turns at random, need not let that happen."""
    alignment = trace.alignment
    assert alignment is not None
    return max(pair.rigorous_bound_ns for pair in alignment.pairs)
