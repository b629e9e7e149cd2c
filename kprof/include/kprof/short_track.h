// A track for kernels of a few microseconds that write a known number of records: every record has its own slot.
//
// In such a kernel the cost of recording is not the stores but the instructions. Each launch fetches them again, and
// the code behind every event that takes another chunk costs more than all stores together: an all-reduce of 6 us on
// four H200 took 10 us with an ordinary track, even when it recorded nothing. A short track gets its chunk with the
// launch
// (`tracks_per_block`), and a record is an address, four words and one store.
//
//   kprof::Span begin = kprof::profile_now();       // before there is a track: only reads the clock
//   send(...);
//   kprof::Span sent = kprof::profile_now(prof, R_PUT);
//   kprof::ShortTrack track = kprof::open_short_track(prof, num_records);       // while the packets are on their way
//   if (kprof::is_writer(track))
//     kprof::profile_at(track, slot, begin, kprof::ticks_between(begin, sent), R_PUT, payload);
//
// Unwritten slots are harmless. If the launch reserved no chunk, the track claims one. If not all records fit, because
// there are more than kRecordsPerChunk or the arena is full, the track writes none of them. They are counted as
// dropped, without their regions.
#pragma once

#include "kprof.h"

namespace kprof {

// The track of a block; its first thread writes.
struct [[maybe_unused]] ShortTrack {
#if KPROF_ENABLED
  uintptr_t before_first;  // the slot before the first record; 0 in threads that do not write
#endif
};

#if KPROF_ENABLED

// Longer tracks sample both clocks again at their end (33 us at 2 GHz, as for spans of ordinary tracks).
constexpr uint64_t kShortTrackTicks = 1u << 16;

// Reads the clock before there is a track, in every thread that calls it.
KPROF_DEVICE Span profile_now() { return Span{event_ticks()}; }

// The same where a span of `region` ends: one that `kprof verify` delays ends later, and all threads that call it spin.
template <typename Id>
KPROF_DEVICE Span profile_now([[maybe_unused]] const Buffer& buffer, [[maybe_unused]] Id region) {
#if KPROF_DELAYS
  if (buffer.arena != 0) delay_span(delay_of(buffer, platform::block_id()), static_cast<uint32_t>(region));
#endif
  return profile_now();
}

// Whether the calling thread writes. Test it before you write, so that the other warps skip this code.
KPROF_DEVICE bool is_writer(const ShortTrack& track) { return track.before_first != 0; }

// A track on its way. If the launch reserved no chunk, thread 0 asks for one and does not wait for the answer.
struct EarlyTrack {
  uintptr_t before_first;  // of a reserved chunk, else 0
  bool has_asked = false;
  uint32_t turn = 0;       // the answer of the block's cursor
  uint32_t arena_kib = 0;  // the distance to the arena that was asked
};

// Asks for a chunk, unless the switches exclude the track.
KPROF_DEVICE EarlyTrack ask_for_chunk(ControlBlock* arena, const Cursors& cursors, uint32_t block, uint32_t options,
                                      uint32_t num_records) {
  EarlyTrack track{};
  if ((options & kLooksAtSwitches) != 0) {
    const Switches switches = read_switches(arena);
    if (is_left_out(switches, block, kBlockTrackWarp)) return {};
    track.arena_kib = switches.arena_kib;
  }
  track.has_asked = true;
  // A buffer made from two numbers carries no limits.
  const bool can_claim = num_records <= kRecordsPerChunk && cursors.num_cursors != 0;
  track.turn = can_claim ? take_turn(arena_moved_by(arena, track.arena_kib), cursors, block) : kNoChunk;
  return track;
}

// The slot before the first record of a track that has asked. Returns 0 if there is no chunk or the records do not fit
// one: they are dropped then.
KPROF_DEVICE uintptr_t begin_asked(ControlBlock* arena, const Cursors& cursors, uint32_t block, uint32_t launch,
                                   uint32_t num_records, const EarlyTrack& asked) {
  arena = arena_moved_by(arena, asked.arena_kib);
  const bool can_claim = num_records <= kRecordsPerChunk && cursors.num_cursors != 0;
  const uint32_t chunk_idx = can_claim ? claim_chunk(arena, cursors, block, asked.turn) : kNoChunk;
  if (chunk_idx != kNoChunk) return begin_chunk(arena, cursors, chunk_idx, block, kBlockTrackWarp, launch, kNoChunk);
  platform::add_global(&arena->cursors[0].num_tracks_without_chunk, uint64_t{1});
  platform::add_global(&sink_of(arena, block)->num_dropped_of_region[0], uint64_t{num_records});
  return 0;
}

// A function of its own, so that opening a track with a reserved chunk stays short.
KPROF_COLD uintptr_t claim_short_track(ControlBlock* arena, Cursors cursors, uint32_t block, uint32_t launch,
                                       uint32_t options, uint32_t num_records) {
  const EarlyTrack asked = ask_for_chunk(arena, cursors, block, options, num_records);
  return asked.has_asked ? begin_asked(arena, cursors, block, launch, num_records, asked) : 0;
}
// The same for the second step alone.
KPROF_COLD uintptr_t claim_asked(ControlBlock* arena, Cursors cursors, uint32_t block, uint32_t launch, uint32_t turn,
                                 uint32_t arena_kib, uint32_t num_records) {
  return begin_asked(arena, cursors, block, launch, num_records, EarlyTrack{0, true, turn, arena_kib});
}

// Opens a track whose chunk is reserved; all others are for `otherwise(arena, cursors, block)`.
template <typename Opened, typename Otherwise>
KPROF_DEVICE Opened open_reserved(const Buffer& buffer, uint32_t num_records, Otherwise otherwise) {
  if (buffer.arena == 0 || platform::thread_id() != 0) return {0};
  auto* arena = reinterpret_cast<ControlBlock*>(buffer.arena);
  const uint32_t block = platform::block_id();
  const Cursors cursors{buffer.chunks_per_cursor, buffer.num_cursors};
  const ReservedChunk reserved = reserved_chunk(buffer, block);
  if (__builtin_expect(reserved.has_one & (num_records <= kRecordsPerChunk), 1)) {
    count_run(arena, buffer, reserved.chunk_idx);
    return {begin_chunk(arena, cursors, reserved.chunk_idx, block, kBlockTrackWarp, buffer.launch, kNoChunk)};
  }
  if (!reserved.has_one && leaves_out(buffer)) return {0};
  return otherwise(arena, cursors, block);
}

// Call it from all threads of the block, once per kernel. The track has slots 0 to num_records - 1.
KPROF_DEVICE ShortTrack open_short_track(const Buffer& buffer, uint32_t num_records) {
  return open_reserved<ShortTrack>(
      buffer, num_records, [&](ControlBlock* arena, const Cursors& cursors, uint32_t block) -> ShortTrack {
        return {claim_short_track(arena, cursors, block, buffer.launch, buffer.options, num_records)};
      });
}

// The same in two steps: what the first asks for is on its way until the second. In a kernel that begins while the
// launch before it ends, the first step is hidden behind that launch.
KPROF_DEVICE EarlyTrack ask_for_short_track(const Buffer& buffer, uint32_t num_records) {
  return open_reserved<EarlyTrack>(buffer, num_records,
                                   [&](ControlBlock* arena, const Cursors& cursors, uint32_t block) -> EarlyTrack {
                                     return ask_for_chunk(arena, cursors, block, buffer.options, num_records);
                                   });
}
KPROF_DEVICE ShortTrack open_short_track(const Buffer& buffer, uint32_t num_records, const EarlyTrack& early) {
  if (__builtin_expect(!early.has_asked, 1)) return {early.before_first};
  return {claim_asked(reinterpret_cast<ControlBlock*>(buffer.arena),
                      Cursors{buffer.chunks_per_cursor, buffer.num_cursors}, platform::block_id(), buffer.launch,
                      early.turn, early.arena_kib, num_records)};
}

// The duration between two clock readings, as records store it: saturated.
KPROF_DEVICE uint32_t ticks_between(const Span& begin, const Span& end) {
  const uint32_t low =
      platform::at_most(static_cast<uint32_t>(end.start_ticks - begin.start_ticks), kDurationSaturated);
  return platform::high_of_difference(end.start_ticks, begin.start_ticks) == 0 ? low : kDurationSaturated;
}

// Writes the record of a span to its slot if `is_wanted`; several calls in a row need no branches. Only the writer may
// call it.
template <typename Id>
KPROF_DEVICE void profile_at(const ShortTrack& track, uint32_t slot, const Span& begin, uint32_t duration_ticks,
                             Id region, uint32_t payload = 0, bool is_wanted = true) {
  // A chunk is aligned to its size: the addresses in it differ in the low word only.
  const uint32_t low = static_cast<uint32_t>(track.before_first) + slot * kRecordBytes;
  uintptr_t cursor =
      (track.before_first & ~static_cast<uintptr_t>(0xffffffffu)) | low | (is_wanted ? 0u : kStoresNothing);
  platform::store_record(cursor, begin.start_ticks, static_cast<uint32_t>(region), duration_ticks, payload);
}

// Ends a track that began at `begin`; `end` is the last reading of the clock. With the cycle counter, a long track
// samples both clocks once more, because cycles drift against time and the header has only the sample from the
// beginning. Reserve a slot for it with either clock.
KPROF_DEVICE void close_short_track([[maybe_unused]] const ShortTrack& track, [[maybe_unused]] uint32_t slot,
                                    [[maybe_unused]] const Span& begin, [[maybe_unused]] const Span& end) {
#if KPROF_CLOCK_CYCLES
  if (!is_writer(track) || end.start_ticks - begin.start_ticks < kShortTrackTicks) return;
  uint64_t realtime = 0, cycles = 0;
  platform::read_anchor(&realtime, &cycles);
  profile_at(track, slot, Span{cycles}, static_cast<uint32_t>(realtime), kAnchorRegionId,
             static_cast<uint32_t>(realtime >> 32));
#endif
}

#else  // KPROF_ENABLED

template <typename... Arguments>
KPROF_DEVICE Span profile_now(const Arguments&...) {
  return {};
}
struct [[maybe_unused]] EarlyTrack {};
template <typename... Arguments>
KPROF_DEVICE EarlyTrack ask_for_short_track(const Arguments&...) {
  return {};
}
template <typename... Arguments>
KPROF_DEVICE ShortTrack open_short_track(const Arguments&...) {
  return {};
}
template <typename... Arguments>
KPROF_DEVICE void close_short_track(const Arguments&...) {}

#endif  // KPROF_ENABLED

}  // namespace kprof
