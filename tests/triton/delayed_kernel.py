"""A kernel for `kprof verify`, in Triton's interpreter and on a clock of its own: a span takes a tick, and its delay.

TRITON_INTERPRET=1 kprof record -- python delayed_kernel.py
"""

from __future__ import annotations

import time
from types import SimpleNamespace

import triton
import triton.language as tl

import kprof
import kprof.triton as kp
from kprof.triton import platform

PROGRAMS, CALLS, ITEMS = 3, 4, 2
TICK_NS = 1_000
regions = kp.Regions()
PACK = regions.define("pack", category="compute", item=24)
REDUCE = regions.define("reduce", category="compute")
READY = regions.define("ready", kind="mark")


@triton.jit
def exchange(n, prof, AT_MOST: tl.constexpr):
    track = kp.open_track(prof, at_most=AT_MOST)
    whole = kp.start(track)
    begin = kp.start(track)
    for i in range(n):
        track, begin = kp.lap(track, begin, PACK, i)
    track = kp.mark(track, READY)
    track = kp.stop(track, whole, REDUCE)


def ticking() -> SimpleNamespace:
    """In place of the module `time`: every reading is a tick after the one before."""
    now = time.monotonic_ns()

    def monotonic_ns() -> int:
        nonlocal now
        now += TICK_NS
        return now

    return SimpleNamespace(monotonic_ns=monotonic_ns)


def main() -> None:
    recorder = kprof.recorder(device="cpu")
    platform.time = ticking()
    for _ in range(CALLS):
        buffer = kp.buffer("exchange", PROGRAMS, regions, recorder=recorder)
        exchange[(PROGRAMS,)](ITEMS, buffer, AT_MOST=None)


if __name__ == "__main__":
    main()
