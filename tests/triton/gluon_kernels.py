"""A warp-specialised Gluon kernel whose partitions record on tracks of their own."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

import kprof.triton as kp

# More than a chunk holds: every partition takes a second one.
NUM_STEPS = 100

regions = kp.Regions()
LOAD = regions.define("load", category="recv", step=16)
MATH = regions.define("math", category="compute", step=16)


@gluon.jit
def load(out, num_steps, prof):
    track = kp.open_track(prof, place=1)
    for step in range(num_steps):
        begin = kp.start(track)
        track = kp.stop(track, begin, LOAD, step)


@gluon.jit
def math(out, num_steps, prof):
    track = kp.open_track(prof)
    total = 0
    for step in range(num_steps):
        begin = kp.start(track)
        total += step
        track = kp.stop(track, begin, MATH, step=step)
    gl.store(out + gl.program_id(0), total)


@gluon.jit
def handed_over(out, num_steps, prof):
    gl.warp_specialize([(math, (out, num_steps, prof)), (load, (out, num_steps, prof))], [4], [48])
