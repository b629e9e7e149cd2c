"""A kernel with two configurations, which records the one that it runs with."""

from __future__ import annotations

import triton
import triton.language as tl

import kprof.triton as kp

regions = kp.Regions()
FILL = regions.define("fill", category="compute", size=24)


@triton.autotune(configs=[triton.Config({"BLOCK": 1024}), triton.Config({"BLOCK": 4096})], key=[])
@triton.jit
def tuned(x, prof, BLOCK: tl.constexpr):
    track = kp.open_track(prof)
    begin = kp.start(track)
    tl.store(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), 1.0)
    track = kp.stop(track, begin, FILL, BLOCK)
