"""Kernels whose machine code the tests read: each with what it is launched with, and how many events its source has."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from compiled import Code, Pointer, compile_for
from needed import require_nvdisasm
from sample_kernels import KPROF, copy, matmul, sample_regions
from stripped import without_kprof

import kprof.triton as kp
from instrumented_kernels.triton_collectives import kernels as collectives
from kprof.recording.launches.launch_buffer import LaunchBuffer

FLOATS, NUMBERS, BASES = Pointer("fp32"), Pointer("i32"), Pointer("i64")
MATRICES = [Pointer("fp16")] * 3
SLOTS = Pointer("i64"), 64
NEVER_SPECIAL = (3, 5, 100, 200)  # rank, epoch, offsets
WORLD = 4


@dataclass(frozen=True)
class Sample:
    """`before` and `after` are the arguments around the buffer. `num_events` are calls that record, once unrolled.
    `is_short` says that its track never takes a second chunk."""

    kernel: Any
    regions: kp.Regions
    before: tuple[Any, ...]
    num_events: int
    after: tuple[Any, ...] = ()
    constants: dict[str, int | bool] = field(default_factory=dict)
    is_short: bool = False


def _matmul(num_events: int, *, in_loop: bool, **more: int) -> Sample:
    constants = {"SCHEME": KPROF, "IN_LOOP": in_loop, "M": 128, "N": 128, "K": 64, **more}
    before = *MATRICES, 4096, 4096
    return Sample(matmul, sample_regions, before, num_events, SLOTS, constants, bool(more))


def _copy(**more: int) -> Sample:
    constants = {"SCHEME": KPROF, "BLOCK": 4096, "num_warps": 8, **more}
    before = NUMBERS, NUMBERS, 8192, 3584
    return Sample(copy, sample_regions, before, 1, SLOTS, constants, bool(more))


SAMPLES = {
    "copy": _copy(),
    "copy in one chunk": _copy(AT_MOST=32),
    "matmul": _matmul(2, in_loop=False),
    "matmul in one chunk": _matmul(2, in_loop=False, AT_MOST=2),
    "matmul with events in its loop": _matmul(3, in_loop=True),
    "one_shot": Sample(
        collectives.one_shot, collectives.regions, (FLOATS, FLOATS, 5000, BASES, *NEVER_SPECIAL),
        2 + 2 * (WORLD - 1), constants={"WORLD": WORLD, "BLOCK": 1024}, is_short=True,
    ),
    "two_shot": Sample(
        collectives.two_shot, collectives.regions,
        (FLOATS, FLOATS, 5000, BASES, *NEVER_SPECIAL, 300, 400),
        3 + 4 * (WORLD - 1), constants={"WORLD": WORLD, "BLOCK": 1024}, is_short=True,
    ),
    "dispatch": Sample(
        collectives.dispatch, collectives.regions,
        (FLOATS, NUMBERS, NUMBERS, NUMBERS, FLOATS, NUMBERS, 24, BASES, *NEVER_SPECIAL, 300),
        5, constants={"WORLD": WORLD, "MOST_ROWS": 24, "HIDDEN": 1024, "SENDERS": 4},
    ),
}  # fmt: skip


def a_buffer(regions: kp.Regions, number: int = 5, num_warps: int = 0) -> kp.Buffer:
    """What a launch under `kprof record` gets."""
    buffer = kp.pack(LaunchBuffer(1 << 40, number, 100, 1, 64, 32, 32), regions, num_warps)
    assert buffer is not None
    return buffer


@cache
def code_of(target: str, name: str, how: str) -> Code:
    """The code of a sample, `how` is "recorded", "off", or "without kprof"."""
    if target.startswith("sm_"):
        require_nvdisasm()
    sample = SAMPLES[name]
    kernel = without_kprof(sample.kernel) if how == "without kprof" else sample.kernel
    prof = a_buffer(sample.regions) if how == "recorded" else None
    constants = dict(sample.constants)
    if name.startswith("matmul"):
        constants["num_stages"] = 3 if target.startswith("sm_") else 2
    return compile_for(target, kernel, *sample.before, prof, *sample.after, **constants)


def require_target(target: str) -> None:
    """Skips where its machine code cannot be read."""
    if target.startswith("sm_"):
        require_nvdisasm()
