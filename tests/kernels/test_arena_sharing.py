"""Who may use which part of an arena: launches that reserve chunks, launches that claim them, and short tracks."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kept_sources import kept_source
from kprof import abi
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
__global__ void marks(unsigned num_marks, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  for (unsigned i = 0; i < num_marks; ++i) kprof::profile_mark(track, 1);
}
__global__ void places(unsigned num_places, kprof::Buffer prof) {
  const kprof::Span begin = kprof::profile_now();
  kprof::ShortTrack track = kprof::open_short_track(prof, num_places);
  if (!kprof::is_writer(track)) return;
  for (unsigned i = 0; i < num_places; ++i) kprof::profile_at(track, i, begin, 1, 1);
}
__global__ void early_places(unsigned num_places, kprof::Buffer prof) {
  const kprof::EarlyTrack early = kprof::ask_for_short_track(prof, num_places);
  const kprof::Span begin = kprof::profile_now();
  sync_block();
  kprof::ShortTrack track = kprof::open_short_track(prof, num_places, early);
  if (!kprof::is_writer(track)) return;
  for (unsigned i = 0; i < num_places; ++i) kprof::profile_at(track, i, begin, 1, 1);
}
extern "C" int run_marks(int blocks, unsigned num_marks, const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(marks, blocks, 64, nullptr, 0, num_marks, kprof::make_buffer(*buffer));
}
extern "C" int run_marks_of_two_numbers(int blocks, unsigned num_marks, void* arena, unsigned number) {
  return KPROF_LAUNCH(marks, blocks, 64, nullptr, 0, num_marks, kprof::make_buffer(arena, number));
}
extern "C" int run_places(int blocks, unsigned num_places, const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(places, blocks, 64, nullptr, 0, num_places, kprof::make_buffer(*buffer));
}
extern "C" int run_early_places(int blocks, unsigned num_places, const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(early_places, blocks, 64, nullptr, 0, num_places, kprof::make_buffer(*buffer));
}
"""
WARPS = 2
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


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    library = load_library(kept_source(KERNEL), BuildOptions(warp_width=32))
    number = ctypes.c_uint
    library.run_marks_of_two_numbers.argtypes = [ctypes.c_int, number, ctypes.c_void_p, number]
    return library


def record(library: ctypes.CDLL, size_bytes: int, flushes: list[list[Work]]) -> Tally:
    arena = Arena(size_bytes)
    ids = RegionIds()
    decoder = Decoder(RankInfo(0, clock=ClockInfo("test", 1e9, 1.0)), ids)
    for works in flushes:
        for work in works:
            number = len(ids.table_of_launch)
            ids.table_of_launch[number] = ids.table_idx(RegionTable.from_names(["mark"]))
            launch(library, arena, number, work)
        state, chunks = arena.read()
        for _ in decoder.decode(state, chunks):
            pass
        arena.reset(state)
    return decoder.tally


def launch(library: ctypes.CDLL, arena: Arena, number: int, work: Work) -> None:
    """As Recorder.launch and the user's extension do."""
    tracks_per_block = {"claiming": 0, "two numbers": 0, "short": 1, "early": 1}.get(
        work.kind, WARPS
    )
    buffer = arena.launch_buffer(number, work.num_blocks, tracks_per_block).packed()
    if work.kind == "two numbers":
        error = library.run_marks_of_two_numbers(
            work.num_blocks, work.num_records, arena.address, number
        )
    else:
        run = getattr(library, SHORT.get(work.kind, "run_marks"))
        error = run(work.num_blocks, work.num_records, buffer)
    assert error == 0


def lost(counts: EventCounts) -> tuple[int, ...]:
    return (counts.torn_chunks, counts.torn_records, counts.stray_chunks, counts.damaged_heads)


@pytest.mark.parametrize("kind", ["claiming", "two numbers"])
def test_launches_that_reserve_nothing_can_have_the_whole_arena(
    library: ctypes.CDLL, kind: str
) -> None:
    num_chunks = abi.ArenaGeometry.for_bytes(1 << 20).num_chunks
    # A track takes its next chunk with the last record of the one before.
    works = [Work(kind, 1, abi.RECORDS_PER_CHUNK * (num_chunks // 4) - 1)] * 2
    counts = record(library, 1 << 20, [works]).counts
    assert (counts.dropped, lost(counts)) == (0, (0, 0, 0, 0))
    assert counts.recorded == sum(work.num_emitted for work in works)


@pytest.mark.parametrize("kind", SHORT)
def test_short_tracks_for_which_nothing_is_left_to_reserve_claim_their_chunk(
    library: ctypes.CDLL, kind: str
) -> None:
    num_chunks = abi.ArenaGeometry.for_bytes(1 << 20).num_chunks
    works = [Work(kind, num_chunks // 64 * 8, 40)] * 8
    counts = record(library, 1 << 20, [works]).counts
    assert (counts.recorded, counts.dropped) == (sum(work.num_emitted for work in works), 0)
    assert lost(counts) == (0, 0, 0, 0)


@pytest.mark.parametrize("kind", SHORT)
def test_short_tracks_that_are_too_long_are_counted_where_they_are_wanted(
    library: ctypes.CDLL, kind: str
) -> None:
    arena = Arena(1 << 20, wanted=Wanted(blocks=(2, 3)))
    num_records = abi.RECORDS_PER_CHUNK + 1
    buffer = arena.filtered_buffer(0, num_blocks=8, tracks_per_block=1).packed()
    assert getattr(library, SHORT[kind])(8, num_records, buffer) == 0
    ids = RegionIds()
    ids.table_of_launch[0] = ids.table_idx(RegionTable.from_names(["mark"]))
    decoder = Decoder(RankInfo(0, clock=ClockInfo("test", 1e9, 1.0)), ids)
    assert not list(decoder.decode(*arena.read()))
    assert decoder.tally.counts.dropped == 2 * num_records


def test_long_tracks_that_did_not_fit_have_more_room_after_a_flush(library: ctypes.CDLL) -> None:
    num_chunks = abi.ArenaGeometry.for_bytes(1 << 20).num_chunks
    works = [Work("reserving", 2, abi.RECORDS_PER_CHUNK * (num_chunks * 3 // 16) - 1)]
    first = record(library, 1 << 20, [works]).counts
    assert first.dropped > 0
    both = record(library, 1 << 20, [works, works]).counts
    assert both.dropped == first.dropped


@pytest.mark.parametrize(
    ("num_blocks", "num_marks"), [(32, (5 * 61 - 1, 8 * 61 - 1)), (1, (61 * 1024,) * 2)]
)
def test_a_chunk_is_handed_out_once_whatever_the_limit_was(
    library: ctypes.CDLL, num_blocks: int, num_marks: tuple[int, int]
) -> None:
    """A launch keeps the limit of its moment, also when later launches are given more."""
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
        assert library.run_marks(num_blocks, num_marks[number], buffer.packed()) == 0
    decoder = Decoder(RankInfo(0, clock=ClockInfo("test", 1e9, 1.0)), ids)
    for _ in decoder.decode(*arena.read()):
        pass
    counts = decoder.tally.counts
    assert lost(counts) == (0, 0, 0, 0)
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
    small = record(library, size_bytes, flushes)
    assert small.counts.recorded + small.counts.dropped == emitted
    assert lost(small.counts) == (0, 0, 0, 0)
    large = record(library, small.arena_use().needed_bytes, flushes)
    assert (large.counts.recorded, large.counts.dropped) == (emitted, 0)
    assert lost(large.counts) == (0, 0, 0, 0)
