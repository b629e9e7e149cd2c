// A track for kernels of a few microseconds, whose records are known in number: every record has its place.
//
// What such a kernel feels of recording is not the records but the instructions: each launch fetches them anew, and
// those for taking a further chunk, behind every event, take longer than all stores together (an all-reduce of 6 us on
// four H200 took 10 us with an ordinary track, and as long when it recorded nothing). A short track has its chunk from
// the launch
// (`tracks_per_block`), and a record is its address, its four words and one store.
//
//   kprof::Span begin = kprof::profile_now();       // before there is a track: moments are only read
//   send(...);
//   kprof::Span sent = kprof::profile_now();
//   kprof::ShortTrack track = kprof::open_short_track(prof, num_records);       // while the packets are on their way
//   if (kprof::is_writer(track)) kprof::profile_at(track, place, begin, kprof::ticks_between(begin, sent), R_PUT,
//   payload);
//
// Unwritten places are harmless. Where the launch reserved no chunk, the track claims one. A track that cannot have
// room for all its records, because there are more than kRecordsPerChunk or the arena is full, writes none of them;
// they are counted as dropped, all regions together.
#pragma once

#include "kprof.h"

namespace kprof {

// The track of a block; its first thread writes.
struct [[maybe_unused]] ShortTrack {
#if KPROF_ENABLED
  uintptr_t before_first;  // the place before the first record; 0 in threads that do not write
#endif
};

#if KPROF_ENABLED

// Tracks that last longer name both clocks at their end, too (33 us at 2 GHz, as for spans of ordinary tracks).
constexpr uint64_t kShortTrackTicks = 1u << 16;

// A moment, before there is a track. Every thread that calls it reads the clock.
KPROF_DEVICE Span profile_now() { return Span{event_ticks()}; }

// Whether the calling thread writes: ask before writing, so that the other warps pass the records by.
KPROF_DEVICE bool is_writer(const ShortTrack& track) { return track.before_first != 0; }

// A track for which no chunk was reserved claims one, if it fits one chunk: the place before its first record. Else 0,
// and its records are dropped. Apart from open_short_track, whose way in is straight.
KPROF_COLD uintptr_t claim_short_track(ControlBlock* arena, Cursors cursors, uint32_t block, uint32_t launch,
                                       uint32_t options, uint32_t num_records) {
  FirstClaim claim = kNoChunk;
  // A launch that was given two numbers knows no limits.
  if (num_records <= kRecordsPerChunk && cursors.num_cursors != 0)
    claim = claim_with_switches(arena, cursors, block, kBlockTrackWarp, options);
  const auto chunk_idx = static_cast<uint32_t>(claim);
  if (chunk_idx == kLeftOut) return 0;
  arena = arena_moved_by(arena, static_cast<uint32_t>(claim >> 32));
  if (chunk_idx != kNoChunk) return begin_chunk(arena, cursors, chunk_idx, block, kBlockTrackWarp, launch, kNoChunk);
  platform::add_global(&arena->cursors[0].num_tracks_without_chunk, 1u);
  platform::add_global(&sink_of(arena, block)->num_dropped_of_region[0], num_records);
  return 0;
}

// Call it from all threads of the block, once per kernel. The track has places 0 to num_records - 1.
KPROF_DEVICE ShortTrack open_short_track(const Buffer& buffer, uint32_t num_records) {
  if (buffer.arena == 0 || platform::thread_id() != 0) return {0};
  auto* arena = reinterpret_cast<ControlBlock*>(buffer.arena);
  const uint32_t block = platform::block_id();
  const Cursors cursors{buffer.chunks_per_cursor, buffer.num_cursors};
  const uint32_t chunk_idx = num_records <= kRecordsPerChunk ? reserved_chunk(buffer, block, 0) : kNoChunk;
  if (__builtin_expect(chunk_idx == kNoChunk, 0))
    return {claim_short_track(arena, cursors, block, buffer.launch, buffer.options, num_records)};
  return {begin_chunk(arena, cursors, chunk_idx, block, kBlockTrackWarp, buffer.launch, kNoChunk)};
}

// How long a span took, as records say it.
KPROF_DEVICE uint32_t ticks_between(const Span& begin, const Span& end) {
  const uint32_t low =
      platform::at_most(static_cast<uint32_t>(end.start_ticks - begin.start_ticks), kDurationSaturated);
  return platform::high_of_difference(end.start_ticks, begin.start_ticks) == 0 ? low : kDurationSaturated;
}

KPROF_DEVICE Span span_after(const Span& span, uint32_t ticks) { return Span{span.start_ticks + ticks}; }

// Writes the record of a span to its place, where `is_wanted`: several in a row need no branches. Only for the writer.
template <typename Id>
KPROF_DEVICE void profile_at(const ShortTrack& track, uint32_t place, const Span& begin, uint32_t duration_ticks,
                             Id region, uint32_t payload = 0, bool is_wanted = true) {
  // A chunk is aligned to its size: its addresses differ in the low word.
  const uint32_t low = static_cast<uint32_t>(track.before_first) + place * kRecordBytes;
  uintptr_t latest =
      (track.before_first & ~static_cast<uintptr_t>(0xffffffffu)) | low | (is_wanted ? 0u : kStoresNothing);
  platform::store_record(latest, begin.start_ticks, static_cast<uint32_t>(region), duration_ticks, payload);
}

// The end of a track that began at `begin`. Where it was a long one after all, both clocks are named once more: cycles
// drift against time, and the header did it at the beginning. That takes a place of its own, whatever the clock.
KPROF_DEVICE void close_short_track([[maybe_unused]] const ShortTrack& track, [[maybe_unused]] uint32_t place,
                                    [[maybe_unused]] const Span& begin) {
#if KPROF_CLOCK_CYCLES
  if (!is_writer(track) || event_ticks() - begin.start_ticks < kShortTrackTicks) return;
  uint64_t realtime = 0, cycles = 0;
  platform::read_anchor(&realtime, &cycles);
  profile_at(track, place, Span{cycles}, static_cast<uint32_t>(realtime), kAnchorRegionId,
             static_cast<uint32_t>(realtime >> 32));
#endif
}

#else  // KPROF_ENABLED

KPROF_DEVICE Span profile_now() { return {}; }
template <typename... Arguments>
KPROF_DEVICE ShortTrack open_short_track(const Arguments&...) {
  return {};
}
template <typename... Arguments>
KPROF_DEVICE void close_short_track(const Arguments&...) {}

#endif  // KPROF_ENABLED

}  // namespace kprof
