"""Kernels that tests launch eagerly and, with buffers that they keep, as graphs do."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import pytest
from widths import WARP_WIDTH, warps_of

from kept_sources import kept_source
from kprof.devices.build import BuildOptions, load_library
from kprof.recording.launches.launch_buffer import LaunchBuffer
from kprof.recording.rank.null_recorder import AnyRecorder

KERNEL = """
#include <kprof/kprof.h>
#include <kprof/short_track.h>
using namespace kprof::platform;
// Block b writes `num_marks` + b records per warp, except that blocks below `first_block` open no track.
__global__ void marks(unsigned num_marks, unsigned first_block, kprof::Buffer prof) {
  if (block_id() < first_block) return;
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  for (unsigned i = 0; i < num_marks + block_id(); ++i) {
    kprof::profile_mark(track, 1, i);
    pause();
  }
}
__global__ void places(unsigned num_places, kprof::Buffer prof) {
  const kprof::Span begin = kprof::profile_now();
  kprof::ShortTrack track = kprof::open_short_track(prof, num_places);
  if (!kprof::is_writer(track)) return;
  for (unsigned i = 0; i < num_places; ++i) kprof::profile_at(track, i, begin, 1, 2, i);
}
extern "C" int run_marks(const kprof::LaunchBuffer* buffer, unsigned num_marks, unsigned first_block, int seed) {
  return KPROF_LAUNCH(marks, 3, 64, nullptr, seed, num_marks, first_block, kprof::make_buffer(*buffer));
}
extern "C" int run_places(const kprof::LaunchBuffer* buffer, unsigned num_places, unsigned, int seed) {
  return KPROF_LAUNCH(places, 3, 64, nullptr, seed, num_places, kprof::make_buffer(*buffer));
}
"""
WARPS = warps_of(64)
TRACKS = {"run_marks": WARPS, "run_places": 1}
CONTENTS = """SELECT kernel, ordinal, block, warp, region, payload, count(*) AS n
              FROM events GROUP BY ALL ORDER BY ALL"""


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return load_library(kept_source(KERNEL), BuildOptions(warp_width=WARP_WIDTH))


class Graph:
    """Launches that keep their buffers, as captured ones do."""

    def __init__(self, library: ctypes.CDLL, recorder: AnyRecorder, *kernels: str) -> None:
        self._library, self._kernels = library, kernels
        self._buffers = [new_buffer(recorder, kernel, is_replayed=True) for kernel in kernels]

    def replay(self, num_records: int, seed: int = 0, first_block: int = 0) -> None:
        for kernel, buffer in zip(self._kernels, self._buffers, strict=True):
            run_kernel(self._library, kernel, buffer, num_records, seed, first_block)


def new_buffer(recorder: AnyRecorder, kernel: str, is_replayed: bool = False) -> LaunchBuffer:
    return recorder.launch(
        kernel,
        ["mark", "place"],
        num_blocks=3,
        tracks_per_block=TRACKS[kernel],
        is_replayed=is_replayed,
    )


def run_kernel(
    library: ctypes.CDLL,
    kernel: str,
    buffer: LaunchBuffer,
    num_records: int,
    seed: int,
    first_block: int = 0,
) -> None:
    run = getattr(library, kernel)
    assert run(buffer.packed(), num_records, first_block, seed) == 0


def emitted(kernels: Sequence[str], num_records: Sequence[int]) -> int:
    of_kernel = {"run_marks": lambda n: WARPS * (3 * n + 3), "run_places": lambda n: 3 * n}
    return sum(of_kernel[kernel](n) for kernel in kernels for n in num_records)


KERNELS = ("run_marks", "run_places", "run_marks")
