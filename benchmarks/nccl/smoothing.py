"""A Triton kernel that takes longer the more rounds it is told to make, for chains of a late rank."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

import kprof.triton as kp

NUM_PROGRAMS, BLOCK = 16, 1024
regions = kp.Regions()
SMOOTH = regions.define("smooth", category="compute")


@triton.jit  # type: ignore[untyped-decorator]
def smooth_rows(values: tl.tensor, rounds: tl.tensor, prof: kp.Buffer, block: tl.constexpr) -> None:
    track = kp.open_track(prof, at_most=1)
    begun = kp.start(track)
    at = tl.program_id(0) * block + tl.arange(0, block)
    row = tl.load(values + at)
    for _ in range(rounds):
        row = tl.cos(row)
    tl.store(values + at, row)
    track = kp.stop(track, begun, SMOOTH)


def smooth(values: torch.Tensor, rounds: int) -> None:
    """`values` are NUM_PROGRAMS x BLOCK numbers."""
    prof = kp.buffer("smooth_rows", NUM_PROGRAMS, regions)
    smooth_rows[(NUM_PROGRAMS,)](values, rounds, prof, BLOCK)
