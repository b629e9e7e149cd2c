"""Kernels that use kprof.triton wrongly, each in one way."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

import kprof.triton as kp

regions = kp.Regions()
WAIT = regions.define("wait", category="wait", peer=8, slot=24)
DONE = regions.define("done", kind="mark")
LEFT = regions.define("left", kind="value")
other_regions = kp.Regions()
FOREIGN = other_regions.define("foreign")


@triton.jit
def too_many_numbers(x, prof):
    track = kp.open_track(prof)
    track = kp.stop(track, kp.start(track), WAIT, 1, 2, 3)


@triton.jit
def a_field_is_missing(x, prof):
    track = kp.open_track(prof)
    track = kp.stop(track, kp.start(track), WAIT, peer=1)


@triton.jit
def a_field_of_another_name(x, prof):
    track = kp.open_track(prof)
    track = kp.stop(track, kp.start(track), WAIT, 1, slott=2)


@triton.jit
def a_constant_that_does_not_fit(x, prof):
    track = kp.open_track(prof)
    track = kp.stop(track, kp.start(track), WAIT, peer=256, slot=0)


@triton.jit
def a_tensor_as_payload(x, prof):
    track = kp.open_track(prof)
    track = kp.stop(track, kp.start(track), WAIT, tl.arange(0, 16), 0)


@triton.jit
def a_float_as_payload(x, prof):
    track = kp.open_track(prof)
    track = kp.stop(track, kp.start(track), WAIT, tl.load(x), 0)


@triton.jit
def a_mark_as_span(x, prof):
    track = kp.open_track(prof)
    track = kp.stop(track, kp.start(track), DONE)


@triton.jit
def a_span_as_value(x, prof):
    track = kp.open_track(prof)
    track = kp.value(track, WAIT, 1)


@triton.jit
def a_region_of_other_regions(x, prof):
    track = kp.open_track(prof)
    track = kp.stop(track, kp.start(track), FOREIGN)


@triton.jit
def a_number_as_region(x, prof):
    track = kp.open_track(prof)
    track = kp.mark(track, 3)


@triton.jit
def no_track(x, prof):
    _ = kp.mark(prof, DONE)


@triton.jit
def no_moment(x, prof):
    track = kp.open_track(prof)
    track = kp.stop(track, 5, WAIT, 1, 2)


@triton.jit
def no_wait(x, prof):
    track = kp.open_track(prof)
    begin = kp.start(track)
    begin = kp.still_waiting(track, begin, WAIT, 1, 2)
    track = kp.stop(track, begin, WAIT, 1, 2)


@triton.jit
def a_wait_that_is_not_kept(x, prof):
    track = kp.open_track(prof)
    wait = kp.waiting(track)
    kp.still_waiting(track, wait, WAIT, 1, 2)
    track = kp.stop(track, wait, WAIT, 1, 2)


@triton.jit
def a_track_that_is_not_kept(x, prof):
    track = kp.open_track(prof)
    kp.mark(track, DONE)


@triton.jit
def a_track_in_a_loop(x, prof):
    for _ in range(tl.program_id(0)):
        track = kp.open_track(prof)
        track = kp.mark(track, DONE)


@triton.jit
def a_number_of_events_that_is_not_known(x, prof):
    track = kp.open_track(prof, at_most=tl.program_id(0))
    track = kp.mark(track, DONE)


@triton.jit
def fewer_events_than_none(x, prof):
    track = kp.open_track(prof, at_most=-1)
    track = kp.mark(track, DONE)


@triton.jit
def fine(x, prof):
    track = kp.open_track(prof)
    track = kp.mark(track, DONE)


@gluon.jit
def worker(track):
    track = kp.mark(track, DONE)


@gluon.jit
def default(track):
    pass


@gluon.jit
def a_track_of_another_partition(x, prof):
    track = kp.open_track(prof)
    gl.warp_specialize([(default, (track,)), (worker, (track,))], [1], [24])
