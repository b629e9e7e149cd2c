// kprof's device API: what happens inside a kernel, in 16 bytes per event.
//
//   __global__ void kernel(..., kprof::Buffer prof) {
//     kprof::Track track = kprof::open_track(prof, kprof::per_warp);   // or per_block
//     kprof::Span span = kprof::profile_start(track);                   // reads the clock
//     while (!arrived(flag)) kprof::platform::pause();
//     kprof::profile_stop(track, span, R_WAIT, kprof::payload<R_WAIT>(peer, slot));
//   }
//
// Contract
//   * A track has one writer: lane 0 of the warp, or thread 0 of the block. All other threads run along and store
//     nothing. A null Buffer turns the stores off at run time; -DKPROF_ENABLED=0 removes the code.
//   * A track is one pointer in a register. Pass it by reference only to functions that are inlined: a track in local
//     memory costs more than all the rest together.
//   * Region ids come from regions.h (see declare_regions.h); 0 is reserved.
//   * Compiled out, arguments of these calls are not evaluated: give them no side effects.
//   * Nothing is ever written outside the arena. What does not fit is counted, per track.
//   * Clock moments: `profile_start` / `profile_stop` read the clock when they are issued. `profile_stop_complete`
//     first waits for the writer's outstanding memory operations, which perturbs the kernel: use it to ask when data
//     had arrived rather than when it was asked for.
#pragma once

#include "abi.h"
#include "platform.h"

#ifndef KPROF_ENABLED
#define KPROF_ENABLED 1
#endif

namespace kprof {

// One kernel's view of the arena, passed by value: what the recorder gave this launch.
#if KPROF_ENABLED
using Buffer = LaunchBuffer;
#else
struct Buffer {};
#endif

// From the recorder's buffer as a whole (`LaunchBuffer.packed()` in Python): tracks find their reserved chunks.
KPROF_DEVICE_HOST Buffer make_buffer([[maybe_unused]] const LaunchBuffer& buffer) {
#if KPROF_ENABLED
  return buffer;
#else
  return {};
#endif
}

// From two numbers, which are easier to hand through an extension: every chunk is claimed.
KPROF_DEVICE_HOST Buffer make_buffer(void* arena, uint32_t launch) {
  return make_buffer(LaunchBuffer{reinterpret_cast<uint64_t>(arena), launch, kNoChunk, 0, 0});
}

enum TrackScope { per_warp, per_block };

struct [[maybe_unused]] Track {
#if KPROF_ENABLED
  // Where the next record goes. Its low bits say everything that the hot path asks: records are 16-byte aligned, so
  // bit 3 is free and means "records nothing"; low 10 bits of zero mean that the chunk is full.
  uintptr_t next;
#endif
};

// A span that has begun. Lives in registers.
struct [[maybe_unused]] Span {
#if KPROF_ENABLED
  uint64_t start_ticks;
#endif
};

#if KPROF_ENABLED

constexpr uintptr_t kNowhere = 8;

KPROF_DEVICE bool is_nowhere(uintptr_t next) { return (static_cast<uint32_t>(next) & kNowhere) != 0; }
KPROF_DEVICE bool is_full(uintptr_t next) { return (static_cast<uint32_t>(next) & (kChunkBytes - 1)) == 0; }

// The chunk that ends at `end`: tracks keep no other state.
KPROF_DEVICE ChunkHeader* chunk_ending_at(uintptr_t end) {
  return reinterpret_cast<ChunkHeader*>(end - kChunkBytes);
}
KPROF_DEVICE char* chunk_address(ControlBlock* arena, uint32_t chunk_idx) {
  return reinterpret_cast<char*>(arena) + kChunksOffset + static_cast<size_t>(chunk_idx) * kChunkBytes;
}
KPROF_DEVICE uintptr_t sink_end(ControlBlock* arena) {
  return reinterpret_cast<uintptr_t>(arena) + kSinkOffset + kChunkBytes;
}

// Takes a free chunk: from the cursor of this block's slice, then from the others. kNoChunk when the arena is full.
KPROF_DEVICE uint32_t claim_chunk(ControlBlock* arena, uint32_t block) {
  const uint32_t num_cursors = arena->num_cursors;
  const uint32_t chunks_per_cursor = arena->chunks_per_cursor;
  uint32_t cursor = block % num_cursors;
  for (uint32_t tries = 0; tries < num_cursors; ++tries) {
    const uint32_t taken = platform::add_device(&arena->cursors[cursor].next_chunk, 1u);
    if (taken < chunks_per_cursor) return arena->num_reserved + cursor * chunks_per_cursor + taken;
    // One failed cursor is normal; a full arena is remembered so that later tracks give up at once.
    if (*static_cast<volatile uint32_t*>(&arena->is_full) != 0) return kNoChunk;
    cursor = cursor + 1 == num_cursors ? 0 : cursor + 1;
  }
  platform::exchange_if_zero_device(&arena->is_full, 1u);
  return kNoChunk;
}

// Writes the header of a fresh chunk and returns where its first record goes.
KPROF_DEVICE uintptr_t begin_chunk(ControlBlock* arena, uint32_t chunk_idx, uint32_t block, uint32_t warp,
                                 uint32_t launch, uint32_t previous_chunk_idx) {
  ChunkHeader header{};
  header.flags = kChunkClaimed;
  header.warp = static_cast<uint16_t>(warp);
  header.block = block;
  header.launch = launch;
  header.chunk_idx = chunk_idx;
  header.anchor_realtime_ticks = platform::realtime_ticks();
  header.anchor_cycles = platform::cycle_ticks();
  header.hw_id = platform::hw_id();
  header.previous_chunk_idx = previous_chunk_idx;
  char* chunk = chunk_address(arena, chunk_idx);
  *reinterpret_cast<ChunkHeader*>(chunk) = header;
  return reinterpret_cast<uintptr_t>(chunk) + kChunkHeaderBytes;
}

// Called when the track stands at the end of a chunk. Returns where the next record goes, or kNowhere when there is no
// room: then the drop is counted in the track's own last chunk (or, for a track that never had one, at a cursor).
KPROF_COLD uintptr_t refill(uintptr_t end) {
  ChunkHeader* last = chunk_ending_at(end);
  if (last->flags & kChunkSink) {
    auto* arena = reinterpret_cast<ControlBlock*>(reinterpret_cast<char*>(last) - kSinkOffset);
    platform::add_device(&arena->cursors[platform::block_id() % arena->num_cursors].num_dropped, 1u);
    return kNowhere;
  }
  if (!(last->flags & kChunkDropping)) {
    auto* arena = reinterpret_cast<ControlBlock*>(reinterpret_cast<char*>(last) - kChunksOffset -
                                                  static_cast<size_t>(last->chunk_idx) * kChunkBytes);
    const uint32_t chunk_idx = claim_chunk(arena, last->block);
    if (chunk_idx != kNoChunk)
      return begin_chunk(arena, chunk_idx, last->block, last->warp, last->launch, last->chunk_idx);
    last->flags |= kChunkDropping;
  }
  ++last->num_dropped;
  return kNowhere;
}

// All lanes run through this together: only a full chunk is a branch, the store and the step are predicated.
KPROF_DEVICE void emit(Track& track, uint32_t region, uint64_t start_ticks, uint32_t duration_ticks,
                       uint32_t payload) {
  uintptr_t slot = track.next;
  // Once in 61 events. A track that drops stays at its end and comes here every time.
  if (__builtin_expect(is_full(slot), 0)) slot = refill(slot);
  if (is_nowhere(slot)) return;
  platform::store_record(reinterpret_cast<Record*>(slot),
                         (start_ticks & kStartMask) | (static_cast<uint64_t>(region) << kStartBits),
                         duration_ticks | (static_cast<uint64_t>(payload) << 32));
  track.next = slot + kRecordBytes;
}

KPROF_DEVICE uint32_t saturate_duration(uint64_t ticks) {
  return ticks < kDurationSaturated ? static_cast<uint32_t>(ticks) : kDurationSaturated;
}

// The chunk that the host reserved for a track, or kNoChunk. Found by arithmetic: nothing to wait for.
KPROF_DEVICE uint32_t reserved_chunk(const Buffer& buffer, uint32_t block, uint32_t place) {
  const uint32_t offset = block * buffer.tracks_per_block + place;
  const bool has_one = place < buffer.tracks_per_block && offset < buffer.num_reserved;
  return has_one ? buffer.first_chunk + offset : kNoChunk;
}

// Opens the track of the calling warp or block. Call it from all threads, once per warp (block) and kernel where the
// launch was given `tracks_per_block`; otherwise a warp may open several.
KPROF_DEVICE Track open_track(const Buffer& buffer, TrackScope scope) {
  const bool is_writer = scope == per_warp ? platform::lane_id() == 0 : platform::thread_id() == 0;
  if (buffer.arena == 0 || !is_writer) return Track{kNowhere};
  auto* arena = reinterpret_cast<ControlBlock*>(buffer.arena);
  const uint32_t block = platform::block_id();
  const uint32_t warp = scope == per_warp ? platform::warp_id() : kBlockTrackWarp;
  uint32_t chunk_idx = reserved_chunk(buffer, block, scope == per_warp ? warp : 0);
  if (chunk_idx == kNoChunk) chunk_idx = claim_chunk(arena, block);
  if (chunk_idx != kNoChunk) return Track{begin_chunk(arena, chunk_idx, block, warp, buffer.launch, kNoChunk)};
  platform::add_device(&arena->cursors[block % arena->num_cursors].num_tracks_without_chunk, 1u);
  return Track{sink_end(arena)};
}

// On a GPU every lane reads the clock: that is cheaper than to choose the one that writes.
KPROF_DEVICE uint64_t clock_of(const Track& track) {
  if (!platform::kLanesShareClock && is_nowhere(track.next)) return 0;
  return platform::realtime_ticks();
}

KPROF_DEVICE Span profile_start(const Track& track) { return Span{clock_of(track)}; }

// profile_stop and profile_start with one reading of the clock: back-to-back spans without a gap.
KPROF_DEVICE Span profile_lap(Track& track, const Span& span, uint32_t region, uint32_t payload = 0) {
  const uint64_t now = clock_of(track);
  emit(track, region, span.start_ticks, saturate_duration(now - span.start_ticks), payload);
  return Span{now};
}

// Ends a span that began at `span` and writes its record.
KPROF_DEVICE void profile_stop(Track& track, const Span& span, uint32_t region, uint32_t payload = 0) {
  profile_lap(track, span, region, payload);
}

// Like profile_stop, after the writer's outstanding memory operations have completed.
KPROF_DEVICE void profile_stop_complete(Track& track, const Span& span, uint32_t region, uint32_t payload = 0) {
  platform::drain_memory();
  profile_lap(track, span, region, payload);
}

// Records an instant.
KPROF_DEVICE void profile_mark(Track& track, uint32_t region, uint32_t payload = 0) {
  emit(track, region, clock_of(track), 0, payload);
}

// Records a value of a counter at this moment.
KPROF_DEVICE void profile_value(Track& track, uint32_t region, uint32_t value) { profile_mark(track, region, value); }

// A span from construction to the end of the scope.
class Scope {
 public:
  KPROF_DEVICE Scope(Track& track, uint32_t region, uint32_t payload = 0)
      : track_(track), span_(profile_start(track)), region_(region), payload_(payload) {}
  KPROF_DEVICE ~Scope() { profile_stop(track_, span_, region_, payload_); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Track& track_;
  Span span_;
  uint32_t region_;
  uint32_t payload_;
};

#else  // KPROF_ENABLED

// The names remain, so that `using kprof::profile_stop;` compiles; the macros drop the arguments unevaluated. Nothing else
// leaves the machine code as it would be without kprof: even a dead argument changes the order of instructions.
KPROF_DEVICE Track open_track() { return {}; }
KPROF_DEVICE Span profile_start() { return {}; }
KPROF_DEVICE Span profile_lap() { return {}; }
KPROF_DEVICE void profile_stop() {}
KPROF_DEVICE void profile_stop_complete() {}
KPROF_DEVICE void profile_mark() {}
KPROF_DEVICE void profile_value() {}
struct [[maybe_unused]] Scope {
  template <typename... Arguments>
  KPROF_DEVICE explicit Scope(const Arguments&...) {}
};

#define open_track(...) open_track()
#define profile_start(...) profile_start()
#define profile_lap(...) profile_lap()
#define profile_stop(...) profile_stop()
#define profile_stop_complete(...) profile_stop_complete()
#define profile_mark(...) profile_mark()
#define profile_value(...) profile_value()

#endif  // KPROF_ENABLED

}  // namespace kprof
