"""What is emitted is recorded or dropped, however much it is, and whoever uses which part of an arena: launches that
reserve chunks, launches that claim them, and short tracks. Counts that went over 32 bits lost events without a word."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from widths import WARP_WIDTH, warps_of

import kprof
from kept_sources import kept_source
from kprof import abi
from kprof.capture.directory import Capture
from kprof.capture.losses import describe_losses
from kprof.capture.manifest import ClockInfo, EventCounts, RankInfo
from kprof.devices.build import BuildOptions, load_library
from kprof.recording.arenas.arena import Arena
from kprof.recording.decoding.decode import Decoder
from kprof.recording.decoding.tally import Tally
from kprof.recording.launches.launch_buffer import NO_CHUNK, LaunchBuffer
from kprof.recording.launches.region_ids import RegionIds
from kprof.recording.launches.wanted import Wanted
from kprof.regions import RegionTable

KERNEL = """
#include <kprof/kprof.h>
#include <kprof/short_track.h>
using namespace kprof::platform;
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
__global__ void early_places(unsigned num_places, kprof::Buffer prof) {
  const kprof::EarlyTrack early = kprof::ask_for_short_track(prof, num_places);
  const kprof::Span begin = kprof::profile_now();
  sync_block();
  kprof::ShortTrack track = kprof::open_short_track(prof, num_places, early);
  if (!kprof::is_writer(track)) return;
  for (unsigned i = 0; i < num_places; ++i) kprof::profile_at(track, i, begin, 1, 1);
}
extern "C" int run_marks(const kprof::LaunchBuffer* buffer, int num_blocks, uint64_t num_marks, int num_threads) {
  return KPROF_LAUNCH(marks, num_blocks, num_threads, nullptr, 0, num_marks, kprof::make_buffer(*buffer));
}
extern "C" int run_places(const kprof::LaunchBuffer* buffer, int num_blocks, unsigned num_places) {
  return KPROF_LAUNCH(places, num_blocks, 64, nullptr, 0, num_places, kprof::make_buffer(*buffer));
}
extern "C" int run_early_places(const kprof::LaunchBuffer* buffer, int num_blocks, unsigned num_places) {
  return KPROF_LAUNCH(early_places, num_blocks, 64, nullptr, 0, num_places, kprof::make_buffer(*buffer));
}
extern "C" int run_marks_of_two_numbers(void* arena, unsigned number, int num_blocks, uint64_t num_marks) {
  return KPROF_LAUNCH(marks, num_blocks, 64, nullptr, 0, num_marks, kprof::make_buffer(arena, number));
}
"""
ONE_CHUNK = abi.CHUNKS_OFFSET + abi.CHUNK_BYTES
WARPS = warps_of(64)
ALMOST_2_32 = (1 << 32) - 5


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    found = load_library(kept_source(KERNEL), BuildOptions(warp_width=WARP_WIDTH))
    found.run_marks.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_int]
    two_numbers = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_uint64]
    found.run_marks_of_two_numbers.argtypes = two_numbers
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


# Opened in one step, and in two.
SHORT = {"short": "run_places", "early": "run_early_places"}


@dataclass(frozen=True)
class Work:
    """A launch: `kind` says how its tracks find their chunks."""

    kind: str
    num_blocks: int
    num_records: int

    @property
    def num_emitted(self) -> int:
        return self.num_blocks * self.num_records * (1 if self.kind in SHORT else WARPS)


def tally_of(library: ctypes.CDLL, size_bytes: int, flushes: list[list[Work]]) -> Tally:
    arena = Arena(size_bytes)
    ids = RegionIds()
    decoder = Decoder(RankInfo(0, clock=ClockInfo("test", 1e9, 1.0)), ids)
    for works in flushes:
        for work in works:
            number = len(ids.table_of_launch)
            ids.table_of_launch[number] = ids.table_idx(RegionTable.from_names(["mark"]))
            launch_work(library, arena, number, work)
        state, chunks = arena.read()
        for _ in decoder.decode(state, chunks):
            pass
        arena.reset(state)
    return decoder.tally


def launch_work(library: ctypes.CDLL, arena: Arena, number: int, work: Work) -> None:
    """As Recorder.launch and the user's extension do."""
    tracks_per_block = {"claiming": 0, "two numbers": 0, "short": 1, "early": 1}.get(
        work.kind, WARPS
    )
    buffer = arena.launch_buffer(number, work.num_blocks, tracks_per_block).packed()
    if work.kind == "two numbers":
        error = library.run_marks_of_two_numbers(
            arena.address, number, work.num_blocks, work.num_records
        )
    elif work.kind in SHORT:
        run = getattr(library, SHORT[work.kind])
        error = run(buffer, work.num_blocks, work.num_records)
    else:
        error = library.run_marks(buffer, work.num_blocks, work.num_records, 64)
    assert error == 0


def damage(counts: EventCounts) -> tuple[int, ...]:
    return (counts.torn_chunks, counts.torn_records, counts.stray_chunks, counts.damaged_heads)


@pytest.mark.parametrize("kind", ["claiming", "two numbers"])
def test_launches_that_reserve_nothing_can_have_the_whole_arena(
    library: ctypes.CDLL, kind: str
) -> None:
    num_chunks = abi.ArenaGeometry.for_bytes(1 << 20).num_chunks
    # A track takes its next chunk with the last tally_of of the one before.
    works = [Work(kind, 1, abi.RECORDS_PER_CHUNK * (num_chunks // 4) - 1)] * 2
    counts = tally_of(library, 1 << 20, [works]).counts
    assert (counts.dropped, damage(counts)) == (0, (0, 0, 0, 0))
    assert counts.recorded == sum(work.num_emitted for work in works)


@pytest.mark.parametrize("kind", SHORT)
def test_short_tracks_for_which_nothing_is_left_to_reserve_claim_their_chunk(
    library: ctypes.CDLL, kind: str
) -> None:
    num_chunks = abi.ArenaGeometry.for_bytes(1 << 20).num_chunks
    works = [Work(kind, num_chunks // 64 * 8, 40)] * 8
    counts = tally_of(library, 1 << 20, [works]).counts
    assert (counts.recorded, counts.dropped) == (sum(work.num_emitted for work in works), 0)
    assert damage(counts) == (0, 0, 0, 0)


@pytest.mark.parametrize("kind", SHORT)
def test_short_tracks_that_are_too_long_are_counted_where_they_are_wanted(
    library: ctypes.CDLL, kind: str
) -> None:
    arena = Arena(1 << 20, wanted=Wanted(blocks=(2, 3)))
    num_records = abi.RECORDS_PER_CHUNK + 1
    buffer = arena.filtered_buffer(0, num_blocks=8, tracks_per_block=1).packed()
    assert getattr(library, SHORT[kind])(buffer, 8, num_records) == 0
    ids = RegionIds()
    ids.table_of_launch[0] = ids.table_idx(RegionTable.from_names(["mark"]))
    decoder = Decoder(RankInfo(0, clock=ClockInfo("test", 1e9, 1.0)), ids)
    assert not list(decoder.decode(*arena.read()))
    assert decoder.tally.counts.dropped == 2 * num_records


def test_long_tracks_that_did_not_fit_have_more_room_after_a_flush(library: ctypes.CDLL) -> None:
    num_chunks = abi.ArenaGeometry.for_bytes(1 << 20).num_chunks
    works = [Work("reserving", 2, abi.RECORDS_PER_CHUNK * (num_chunks * 3 // 16) - 1)]
    first = tally_of(library, 1 << 20, [works]).counts
    assert first.dropped > 0
    both = tally_of(library, 1 << 20, [works, works]).counts
    assert both.dropped == first.dropped


@pytest.mark.parametrize(
    ("num_blocks", "num_marks"), [(32, (5 * 61 - 1, 8 * 61 - 1)), (1, (61 * 1024,) * 2)]
)
def test_a_chunk_is_handed_out_once_whatever_the_limit_was(
    library: ctypes.CDLL, num_blocks: int, num_marks: tuple[int, int]
) -> None:
    """A launch_work keeps the limit of its moment, also when later launches are given more."""
    arena = Arena(1 << 20)
    first = arena.launch_buffer(0, num_blocks=100, tracks_per_block=1).first_chunk
    early = arena.limits
    arena.launch_buffer(0, num_blocks=100, tracks_per_block=0)
    late = arena.limits
    assert early[0] < late[0]
    assert late[0] * late[1] <= first
    assert arena.launch_buffer(0, late[1], tracks_per_block=1).first_chunk == NO_CHUNK
    ids = RegionIds()
    for number, limits in enumerate((early, late)):
        ids.table_of_launch[number] = ids.table_idx(RegionTable.from_names(["mark"]))
        buffer = LaunchBuffer(arena.address, number, NO_CHUNK, 0, 0, *limits)
        assert library.run_marks(buffer.packed(), num_blocks, num_marks[number], 64) == 0
    decoder = Decoder(RankInfo(0, clock=ClockInfo("test", 1e9, 1.0)), ids)
    for _ in decoder.decode(*arena.read()):
        pass
    counts = decoder.tally.counts
    assert damage(counts) == (0, 0, 0, 0)
    assert counts.recorded + counts.dropped == num_blocks * WARPS * sum(num_marks)
    # 832 chunks are more than the first limit allows; where nothing fits any more, what fitted is
    # there.
    assert (counts.dropped == 0) == (num_blocks == 32)
    assert counts.recorded >= abi.RECORDS_PER_CHUNK * early[0] * early[1]


WORKS = st.lists(
    st.builds(
        Work,
        st.sampled_from(["claiming", "two numbers", "reserving", "short"]),
        st.integers(1, 40),
        st.sampled_from([0, 1, 30, 60, 61]),
    )
    | st.builds(
        Work,
        st.sampled_from(["claiming", "two numbers", "reserving"]),
        st.integers(1, 6),
        st.integers(62, 900),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60)
@given(
    st.lists(WORKS, min_size=1, max_size=2),
    st.sampled_from([13_312, 30_000, 80_000, 150_000, 400_000]),
)
def test_all_is_counted_and_the_named_size_holds_everything(
    library: ctypes.CDLL, flushes: list[list[Work]], size_bytes: int
) -> None:
    emitted = sum(work.num_emitted for works in flushes for work in works)
    small = tally_of(library, size_bytes, flushes)
    assert small.counts.recorded + small.counts.dropped == emitted
    assert damage(small.counts) == (0, 0, 0, 0)
    large = tally_of(library, small.arena_use().needed_bytes, flushes)
    assert (large.counts.recorded, large.counts.dropped) == (emitted, 0)
    assert damage(large.counts) == (0, 0, 0, 0)
