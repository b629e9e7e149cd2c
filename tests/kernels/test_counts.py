"""Counts that went over 32 bits lost events without a word: what was emitted is recorded or dropped, however much it is."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np
import pytest
from widths import WARP_WIDTH, warps_of

import kprof
from kept_sources import kept_source
from kprof import abi
from kprof.capture.directory import Capture
from kprof.capture.losses import describe_losses
from kprof.capture.manifest import RankInfo
from kprof.devices.build import BuildOptions, load_library
from kprof.recording.launches.launch_buffer import LaunchBuffer

KERNEL = """
#include <kprof/kprof.h>
#include <kprof/short_track.h>
__global__ void marks(uint64_t num_marks, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  for (uint64_t i = 0; i < num_marks; ++i) kprof::profile_mark(track, 1, 0);
}
__global__ void places(unsigned num_places, kprof::Buffer prof) {
  const kprof::Span begin = kprof::profile_now();
  kprof::ShortTrack track = kprof::open_short_track(prof, num_places);
  if (!kprof::is_writer(track)) return;
  for (unsigned i = 0; i < num_places; ++i) kprof::profile_at(track, i, begin, 1, 1, i);
}
extern "C" int run_marks(const kprof::LaunchBuffer* buffer, int num_blocks, uint64_t num_marks, int num_threads) {
  return KPROF_LAUNCH(marks, num_blocks, num_threads, nullptr, 0, num_marks, kprof::make_buffer(*buffer));
}
extern "C" int run_places(const kprof::LaunchBuffer* buffer, int num_blocks, unsigned num_places) {
  return KPROF_LAUNCH(places, num_blocks, 64, nullptr, 0, num_places, kprof::make_buffer(*buffer));
}
"""
ONE_CHUNK = abi.CHUNKS_OFFSET + abi.CHUNK_BYTES
WARPS = warps_of(64)
ALMOST_2_32 = (1 << 32) - 5


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    found = load_library(kept_source(KERNEL), BuildOptions(warp_width=WARP_WIDTH))
    found.run_marks.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_int]
    return found


def head_of(buffer: LaunchBuffer) -> np.ndarray:
    """The head of the arena, in the memory of this process."""
    content = (ctypes.c_uint8 * abi.CHUNKS_OFFSET).from_address(buffer.arena)
    return np.frombuffer(content, np.uint8)


def recorded(path: Path) -> RankInfo:
    (info,) = Capture.open(path).manifest.ranks
    return info


def test_counters_of_dropped_events_go_beyond_32_bits(library: ctypes.CDLL, tmp_path: Path) -> None:
    with kprof.session(tmp_path / "run.kprof", arena_bytes=ONE_CHUNK) as recorder:
        buffer = recorder.launch("marks", ["mark"])
        assert library.run_marks(buffer.packed(), 1, 100, 64) == 0
        head = head_of(buffer)
        sinks = head[abi.SINKS_OFFSET :].view(abi.SINK)["num_dropped_of_region"]
        before = int(sinks.sum())
        sinks[0, 1] = ALMOST_2_32
        without = head[: abi.CONTROL_BYTES].view(abi.CONTROL)[0]["cursors"][0]
        without["num_tracks_without_chunk"] = ALMOST_2_32
        assert library.run_marks(buffer.packed(), 8, 10, 64) == 0
        assert library.run_places(buffer.packed(), 8, 10) == 0
        assert int(without["num_tracks_without_chunk"]) == ALMOST_2_32 + 8 * WARPS + 8
    info = recorded(tmp_path / "run.kprof")
    dropped_before = WARPS * 100 - info.counts.recorded
    assert before == dropped_before
    assert info.counts.dropped == ALMOST_2_32 + 8 * WARPS * 10 + 8 * 10
    assert info.counts.damaged_heads == 0


@pytest.mark.parametrize("num_claimed", [abi.SPENT_TURN, ALMOST_2_32])
def test_a_cursor_never_hands_out_a_chunk_again(
    library: ctypes.CDLL, tmp_path: Path, num_claimed: int
) -> None:
    """After 2^32 claims it began again at chunk 0, which other tracks had filled."""
    with kprof.session(tmp_path / "run.kprof", arena_bytes=ONE_CHUNK) as recorder:
        buffer = recorder.launch("marks", ["mark"])
        assert library.run_marks(buffer.packed(), 1, 5, 64) == 0
        cursor = head_of(buffer)[: abi.CONTROL_BYTES].view(abi.CONTROL)[0]["cursors"][0]
        cursor["next_chunk"] = num_claimed
        assert library.run_marks(buffer.packed(), 20, 1, 64) == 0
        assert cursor["next_chunk"] == abi.SPENT_TURN
    info = recorded(tmp_path / "run.kprof")
    assert (info.counts.recorded, info.counts.dropped) == (5, WARPS * 5 - 5 + 20 * WARPS)


def test_a_counter_that_nothing_can_have_counted_is_damage(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    with kprof.session(tmp_path / "run.kprof", arena_bytes=ONE_CHUNK) as recorder:
        buffer = recorder.launch("marks", ["mark"])
        assert library.run_marks(buffer.packed(), 1, 5, 64) == 0
        head = head_of(buffer)
        head[abi.SINKS_OFFSET :].view(abi.SINK)["num_dropped_of_region"][3, 1] = 1 << 63
    counts = recorded(tmp_path / "run.kprof").counts
    assert (counts.recorded, counts.dropped, counts.damaged_heads) == (5, WARPS * 5 - 5, 1)


# All of it takes minutes: KPROF_TEST_EVENTS=5000000000 pytest tests/kernels/test_counts.py
NUM_EVENTS = int(os.environ.get("KPROF_TEST_EVENTS", "3000000"))


def test_recorded_and_dropped_are_what_was_emitted(library: ctypes.CDLL, tmp_path: Path) -> None:
    per_track, num_blocks = NUM_EVENTS // 2 + 1, 2
    with kprof.session(tmp_path / "run.kprof", arena_bytes=1 << 20) as recorder:
        buffer = recorder.launch("marks", ["mark"], num_blocks=num_blocks)
        assert library.run_marks(buffer.packed(), num_blocks, per_track, 1) == 0
    info = recorded(tmp_path / "run.kprof")
    assert info.counts.recorded + info.counts.dropped == num_blocks * per_track
    assert sum(each.dropped for each in info.losses) == info.counts.dropped > NUM_EVENTS // 2


@pytest.mark.parametrize("kernel", ["run_marks", "run_places"])
@pytest.mark.parametrize("counts", [(10, 40, 20), (20, 20, 20)])
def test_runs_that_had_one_buffer_are_counted(
    library: ctypes.CDLL, tmp_path: Path, kernel: str, counts: tuple[int, ...]
) -> None:
    """Of 70 events 40 were recorded and none was said to be lost."""
    run = getattr(library, kernel)
    more = (64,) if kernel == "run_marks" else ()
    with kprof.session(tmp_path / "run.kprof", arena_bytes=1 << 20) as recorder:
        for _ in range(3):
            own = recorder.launch("own", ["mark"], num_blocks=2, tracks_per_block=WARPS)
            assert run(own.packed(), 2, 5, *more) == 0
        shared = recorder.launch("shared", ["mark"], num_blocks=2, tracks_per_block=WARPS)
        for count in counts:
            assert run(shared.packed(), 2, count, *more) == 0
    capture = Capture.open(tmp_path / "run.kprof")
    (info,) = capture.manifest.ranks
    assert (info.counts.overwritten_runs, info.counts.dropped) == (len(counts) - 1, 0)
    (sentence,) = describe_losses(capture.manifest)
    assert sentence.startswith("2 runs had the buffers of others")
    assert "is_replayed" in sentence
