"""A Triton kernel with one event a program: overflow.py PROGRAMS LAUNCHES [claimed]. The result is right whatever the arena."""

import sys

import torch
import triton
import triton.language as tl

import kprof.triton as kp

programs, launches = int(sys.argv[1]), int(sys.argv[2])
grid = None if len(sys.argv) > 3 else programs
regions = kp.Regions()
ONE = regions.define("one", category="compute")


@triton.jit
def touch(out, prof):
    track = kp.open_track(prof)
    begin = kp.start(track)
    place = out + tl.program_id(0)
    tl.store(place, tl.load(place) + 1)
    track = kp.stop(track, begin, ONE)


out = torch.zeros(programs, dtype=torch.int32, device="cuda")
for _ in range(launches):
    touch[(programs,)](out, kp.buffer("touch", grid, regions))
print("right:", bool((out == launches).all()))
