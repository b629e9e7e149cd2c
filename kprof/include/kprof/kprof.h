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
//   * Compiled out, these calls are empty functions, and a payload is 0. A value that takes memory reads to compute can
//   be given
//     to `payload` as a lambda: it is not called then, and the machine code is that of a kernel without kprof.
//   * Nothing is ever written outside the arena. What does not fit is counted, by region.
//   * Let all lanes of a warp run along with its events, or one lane with all of them; for a mixture of both in one
//   track see
//     KPROF_INLINE_REFILL (platform/cuda.h).
//   * Clock moments: spans end when the call is issued, with loads and stores of the span possibly still under way. A
//     region that regions.h declares `complete` first waits for the writer's outstanding memory operations, to say when
//     data had arrived rather than when it was asked for. That wait perturbs the kernel: what would have overlapped no
//     longer does. `profile_stop_complete` is the same for kernels without a regions.h.
//   * Clocks: -DKPROF_CLOCK_CYCLES=1 records the processor's cycle counter (0.5 ns a step where NVIDIA's real-time
//   clock
//     has 32), for a little more and with a record that is no event every 33 us. The decoder puts it on the real-time
//     clock.
#pragma once

#include "abi.h"
#include "platform.h"

#ifndef KPROF_ENABLED
#define KPROF_ENABLED 1
#endif
#ifndef KPROF_CLOCK_CYCLES
#define KPROF_CLOCK_CYCLES 0
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
  LaunchBuffer buffer{};
  buffer.arena = reinterpret_cast<uint64_t>(arena);
  buffer.launch = launch;
  buffer.first_chunk = kNoChunk;
  buffer.options = kLooksAtSwitches;
  return make_buffer(buffer);
}

enum TrackScope { per_warp, per_block };

struct [[maybe_unused]] Track {
#if KPROF_ENABLED
  KPROF_DEVICE explicit Track(uintptr_t position) : latest(position) {}
  // Two copies would write their records over each other.
  Track(const Track&) = delete;
  Track& operator=(const Track&) = delete;
#if KPROF_CLOCK_CYCLES
  KPROF_DEVICE ~Track();
#endif
  // Where the latest record is, in a fresh chunk the place before the first. Its low bits say everything that the hot
  // path asks: records are 16-byte aligned, so bit 3 is free and means "store nothing", and all of bits 4 to 9 set mean
  // that the chunk is full.
  uintptr_t latest;
#endif
};

// A span that has begun. Lives in registers.
struct [[maybe_unused]] Span {
#if KPROF_ENABLED
  uint64_t start_ticks;
#endif
};

#if KPROF_ENABLED

// What the records of this translation unit hold: the real-time clock, which all processors of a device share, or the
// cycle counter of the processor, which has the finer step. The decoder puts cycles on the real-time clock.
#if KPROF_CLOCK_CYCLES
constexpr uint16_t kChunkFlags = kChunkClaimed | kChunkAbi | kChunkCycles;
KPROF_DEVICE uint64_t event_ticks() { return platform::cycle_ticks(); }
#else
constexpr uint16_t kChunkFlags = kChunkClaimed | kChunkAbi;
KPROF_DEVICE uint64_t event_ticks() { return platform::realtime_ticks(); }
#endif

// The place before the first record, within a chunk. Where nothing is recorded, positions walk through a chunk at
// address 0, in step with those of the writers: a warp then comes to the end of its chunk as one.
constexpr uintptr_t kBeforeFirst = kChunkHeaderBytes - kRecordBytes;
constexpr uintptr_t kNowhere = kBeforeFirst | kStoresNothing;
constexpr uint32_t kFullMask = (kChunkBytes - 1) & ~(kRecordBytes - 1);

KPROF_DEVICE bool stores_nothing(uintptr_t latest) { return (static_cast<uint32_t>(latest) & kStoresNothing) != 0; }
KPROF_DEVICE bool is_full(uint32_t low_of_latest) { return (~low_of_latest & kFullMask) == 0; }
KPROF_DEVICE bool is_full(uintptr_t latest) { return is_full(static_cast<uint32_t>(latest)); }

// Where a track stands that finds no further chunk: full again with the next event, which is counted as dropped.
KPROF_DEVICE uintptr_t before_full(uintptr_t full) { return (full - kRecordBytes) | kStoresNothing; }

KPROF_DEVICE ChunkHeader* chunk_of(uintptr_t latest) {
  return reinterpret_cast<ChunkHeader*>(latest & ~static_cast<uintptr_t>(kChunkBytes - 1));
}
KPROF_DEVICE char* chunk_address(ControlBlock* arena, uint32_t chunk_idx) {
  return reinterpret_cast<char*>(arena) + kChunksOffset + static_cast<size_t>(chunk_idx) * kChunkBytes;
}
// Sinks lie in front of the first chunk and have negative numbers.
KPROF_DEVICE ControlBlock* arena_of(ChunkHeader* chunk) {
  const auto chunk_idx = static_cast<ptrdiff_t>(static_cast<int32_t>(chunk->chunk_idx));
  return reinterpret_cast<ControlBlock*>(reinterpret_cast<char*>(chunk) - kChunksOffset - chunk_idx * kChunkBytes);
}

KPROF_DEVICE SinkChunk* sink_of(ControlBlock* arena, uint32_t block) {
  return reinterpret_cast<SinkChunk*>(reinterpret_cast<char*>(arena) + kSinksOffset) + (block & (kNumSinks - 1));
}

// How the claimable chunks are shared: cursor i hands out every num_cursors-th chunk from chunk i on, chunks_per_cursor
// in all. The number of cursors is a power of two.
struct Cursors {
  uint32_t chunks_per_cursor;
  uint32_t num_cursors;
};

// A chunk from one cursor, or kNoChunk.
KPROF_DEVICE uint32_t claim_from(ControlBlock* arena, const Cursors& cursors, uint32_t cursor_idx) {
  const uint32_t taken = platform::add_global(&arena->cursors[cursor_idx].next_chunk, 1u);
  return taken < cursors.chunks_per_cursor ? taken * cursors.num_cursors + cursor_idx : kNoChunk;
}

// Takes a free chunk: from the cursor of this block's slice, then from the others. kNoChunk when the arena is full.
// One way out of the loop: with two, nvcc makes every event wait for the whole warp (WARPSYNC behind the refill).
KPROF_DEVICE uint32_t claim_chunk(ControlBlock* arena, const Cursors& cursors, uint32_t block) {
  uint32_t chunk_idx = claim_from(arena, cursors, block & (cursors.num_cursors - 1));
  uint32_t tries = 1;
  KPROF_UNROLL(1)
  // A full arena is remembered, so that later tracks give up after one cursor, unless they have a higher limit.
  while (chunk_idx == kNoChunk && tries < cursors.num_cursors &&
         platform::load_global(&arena->full_limit) < cursors.chunks_per_cursor) {
    chunk_idx = claim_from(arena, cursors, (block + tries) & (cursors.num_cursors - 1));
    ++tries;
  }
  if (chunk_idx == kNoChunk) platform::store_global(&arena->full_limit, cursors.chunks_per_cursor);
  return chunk_idx;
}

// Writes the header of a fresh chunk and returns the place before its first record.
KPROF_DEVICE uintptr_t begin_chunk(ControlBlock* arena, const Cursors& cursors, uint32_t chunk_idx, uint32_t block,
                                   uint32_t warp, uint32_t launch, uint32_t previous_chunk_idx) {
  ChunkHeader header{};
  header.flags = static_cast<uint16_t>(kChunkFlags | (cursors.num_cursors << kChunkCursorsShift));
  header.warp = static_cast<uint16_t>(warp);
  header.block = block;
  header.launch = launch;
  header.chunk_idx = chunk_idx;
  platform::read_anchor(&header.anchor_realtime_ticks, &header.anchor_cycles);
  header.hw_id = platform::hw_id();
  header.previous_chunk_idx = previous_chunk_idx;
  header.chunks_per_cursor = cursors.chunks_per_cursor;
  char* chunk = chunk_address(arena, chunk_idx);
  *reinterpret_cast<ChunkHeader*>(chunk) = header;
  return reinterpret_cast<uintptr_t>(chunk) + kBeforeFirst;
}

// Counts an event that found no room: by region, and in the track's last chunk, if it ever had one.
KPROF_DEVICE void count_dropped(ChunkHeader* last, uint32_t region) {
  const bool is_sink = static_cast<int32_t>(last->chunk_idx) < 0;
  if (!is_sink) ++last->num_dropped;
  SinkChunk* sink = is_sink ? reinterpret_cast<SinkChunk*>(last) : sink_of(arena_of(last), last->block);
  platform::add_global(&sink->num_dropped_of_region[platform::at_most(region, kNumDropCounters - 1)], 1u);
}

// Called when the chunk of a track is full; returns the track's new position. All that it needs is in the header of
// that chunk: one read of memory, one atomic, one header.
KPROF_DEVICE uintptr_t refill(uintptr_t latest) {
  ChunkHeader* last = chunk_of(latest);
  const Cursors cursors{last->chunks_per_cursor, (last->flags >> kChunkCursorsShift) & kChunkCursorsMask};
  ControlBlock* arena = arena_of(last);
  const uint32_t chunk_idx = claim_chunk(arena, cursors, last->block);
  // Read again from a line that is near now, rather than kept in registers that the kernel around this may need.
  if (chunk_idx != kNoChunk)
    return begin_chunk(arena, cursors, chunk_idx, last->block, last->warp, last->launch, last->chunk_idx);
  last->flags |= kChunkNoNext;
  return before_full(latest);
}

// Stores a record that is no event: both clocks at one moment.
KPROF_DEVICE void store_anchor(uintptr_t& latest) {
  uint64_t realtime = 0, cycles = 0;
  platform::read_anchor(&realtime, &cycles);
  platform::store_record(latest, cycles, kAnchorRegionId, static_cast<uint32_t>(realtime),
                         static_cast<uint32_t>(realtime >> 32));
}

// Where start and end differ in this bit or a higher one, a span is long: 33 us at 2 GHz, so that a track with few
// events names both clocks often enough (cycles drift against time, by 0.05 % within milliseconds on some SMs of an
// H200); else a second or more, of which few bits are left until the duration saturates.
constexpr uint32_t kLongSpanMask = ~0u << (KPROF_CLOCK_CYCLES ? 16 : 31);
KPROF_DEVICE bool is_long(uint64_t start_ticks, uint64_t end_ticks) {
  const uint32_t low = static_cast<uint32_t>(start_ticks) ^ static_cast<uint32_t>(end_ticks);
  const uint32_t high = static_cast<uint32_t>(start_ticks >> 32) ^ static_cast<uint32_t>(end_ticks >> 32);
  return ((low & kLongSpanMask) | high) != 0;
}

// What few events need once their record is stored, because the chunk is full or the span long; returns the track's new
// position. Its arguments are few, because what crosses a call holds registers of the kernel.
KPROF_COLD uintptr_t settle(uintptr_t latest, uint32_t region, uint32_t high_of_duration) {
  if (stores_nothing(latest)) {
    if (!is_full(latest)) return latest;
    if (chunk_of(latest) == nullptr) return kNowhere;
    count_dropped(chunk_of(latest), region);
    return before_full(latest);
  }
  auto* record = reinterpret_cast<Record*>(latest);
  if (high_of_duration != 0 || record->duration_ticks > kDurationSaturated) record->duration_ticks = kDurationSaturated;
#if KPROF_CLOCK_CYCLES
  // The header of a new chunk has both clocks anyway.
  if (!is_full(latest)) store_anchor(latest);
#endif
  return is_full(latest) ? refill(latest) : latest;
}

// All lanes run through this together. The store and the step are predicated; the one branch comes after them, so that
// neither waits for it, and is taken once in 61 events.
KPROF_DEVICE void emit(Track& track, uint32_t region, uint64_t start_ticks, uint64_t end_ticks, uint32_t payload) {
  const uint32_t low_of_latest = platform::store_record(track.latest, start_ticks, region,
                                                        static_cast<uint32_t>(end_ticks - start_ticks), payload);
  // One branch for both: `|` on numbers, because `||` would make two.
  if (__builtin_expect(static_cast<int>(is_full(low_of_latest)) | static_cast<int>(is_long(start_ticks, end_ticks)), 0))
    track.latest = settle(track.latest, region, platform::high_of_difference(end_ticks, start_ticks));
}

#if KPROF_CLOCK_CYCLES
// Once more at the end, where the chunk has room.
KPROF_DEVICE Track::~Track() {
  if (!stores_nothing(latest)) store_anchor(latest);
}
#endif

// The chunk that the host reserved for a track, or kNoChunk. Found by arithmetic: nothing to wait for.
KPROF_DEVICE uint32_t reserved_chunk(const Buffer& buffer, uint32_t block, uint32_t place) {
  const uint32_t offset = block * buffer.tracks_per_block + place;
  const bool has_one = place < buffer.tracks_per_block && offset < buffer.num_reserved;
  return has_one ? buffer.first_chunk + offset : kNoChunk;
}

// Whether the switches leave a track out. The host may change them at any time, hence volatile.
KPROF_DEVICE bool is_left_out(const volatile Switches& switches, uint32_t block, uint32_t warp) {
  const uint32_t num_blocks = switches.num_blocks, warps = switches.warps;
  const bool is_block = num_blocks == 0 || block - switches.first_block < num_blocks;
  const bool is_warp = warps == 0 || warp == kBlockTrackWarp || (warps >> (warp & 31) & 1) != 0;
  // Fibonacci hashing: neighbours fall into different samples.
  const bool is_sampled = ((block * 33 + warp) * 0x9E3779B1u >> 16 & switches.sample_mask) == 0;
  return switches.is_off != 0 || !is_block || !is_warp || !is_sampled;
}

// The arena that launches with switches record into now.
KPROF_DEVICE ControlBlock* arena_moved_by(ControlBlock* arena, uint32_t kib) {
  return reinterpret_cast<ControlBlock*>(reinterpret_cast<char*>(arena) + static_cast<size_t>(kib) * 1024);
}

// A claim of a track's first chunk: the chunk (kNoChunk: there was none, kLeftOut: none is wanted) and, in the upper
// half, how far away its arena lies.
using FirstClaim = uint64_t;

// What a launch needs for which the host reserved no chunk, before any of its tracks claims one.
KPROF_DEVICE FirstClaim claim_with_switches(ControlBlock* arena, Cursors cursors, uint32_t block, uint32_t warp,
                                            uint32_t options) {
  uint32_t arena_kib = 0;
  if (options != 0) {
    const volatile Switches& switches = arena->switches;
    if (is_left_out(switches, block, warp)) return kLeftOut;
    arena_kib = switches.arena_kib;
  }
  return static_cast<FirstClaim>(arena_kib) << 32 | claim_chunk(arena_moved_by(arena, arena_kib), cursors, block);
}

// Where a track without a reserved chunk begins. Apart from open_track, because a launch finds few of its instructions
// near: what the way into a kernel jumps over is another fetch to wait for. All lanes call it together.
KPROF_COLD uintptr_t open_claimed(ControlBlock* arena, Cursors cursors, uint32_t block, uint32_t warp, uint32_t launch,
                                  uint32_t options, bool is_writer) {
  if (!is_writer) return kNowhere;
  // The host says the limits with the launch, unless it was given two numbers. Volatile, or clang makes one load from
  // either of two addresses, for which all arguments of the kernel go to scratch memory.
  if (cursors.num_cursors == 0) {
    cursors.chunks_per_cursor = *static_cast<const volatile uint32_t*>(&arena->chunks_per_cursor);
    cursors.num_cursors = *static_cast<const volatile uint32_t*>(&arena->num_cursors);
  }
  const FirstClaim claim = claim_with_switches(arena, cursors, block, warp, options);
  const auto chunk_idx = static_cast<uint32_t>(claim);
  arena = arena_moved_by(arena, static_cast<uint32_t>(claim >> 32));
  if (chunk_idx == kLeftOut) return kNowhere;
  if (chunk_idx != kNoChunk) return begin_chunk(arena, cursors, chunk_idx, block, warp, launch, kNoChunk);
  platform::add_global(&arena->cursors[block & (cursors.num_cursors - 1)].num_tracks_without_chunk, 1u);
  return before_full(reinterpret_cast<uintptr_t>(sink_of(arena, block)) + kFullMask);
}

// Opens the track of the calling warp or block. Call it from all threads, once per warp (block) and kernel where the
// launch was given `tracks_per_block` or is captured in a graph; otherwise a warp may open several.
KPROF_DEVICE Track open_track(const Buffer& buffer, TrackScope scope) {
  if (buffer.arena == 0) return Track{kNowhere};
  const bool is_writer = scope == per_warp ? platform::lane_id() == 0 : platform::thread_id() == 0;
  auto* arena = reinterpret_cast<ControlBlock*>(buffer.arena);
  const uint32_t block = platform::block_id();
  const uint32_t warp = scope == per_warp ? platform::warp_id() : kBlockTrackWarp;
  const Cursors cursors{buffer.chunks_per_cursor, buffer.num_cursors};
  const uint32_t chunk_idx = reserved_chunk(buffer, block, scope == per_warp ? warp : 0);
  if (__builtin_expect(chunk_idx == kNoChunk, 0))
    return Track{open_claimed(arena, cursors, block, warp, buffer.launch, buffer.options, is_writer)};
  if (!is_writer) return Track{kNowhere};
  return Track{begin_chunk(arena, cursors, chunk_idx, block, warp, buffer.launch, kNoChunk)};
}

// On a GPU every lane reads the clock: that is cheaper than to choose the one that writes.
KPROF_DEVICE uint64_t clock_of(const Track& track) {
  if (!platform::kLanesShareClock && stores_nothing(track.latest)) return 0;
  return event_ticks();
}

KPROF_DEVICE Span profile_start(const Track& track) { return Span{clock_of(track)}; }

// Which regions end when their memory operations have completed; declare_regions.h says it for the ids that it
// declares.
template <typename Id>
struct RegionMoments {
  KPROF_DEVICE static constexpr bool is_complete(Id) { return false; }
};

// profile_stop and profile_start with one reading of the clock: back-to-back spans without a gap.
template <typename Id>
KPROF_DEVICE Span profile_lap(Track& track, const Span& span, Id region, uint32_t payload = 0) {
  if (RegionMoments<Id>::is_complete(region)) platform::drain_memory();
  const uint64_t now = clock_of(track);
  emit(track, static_cast<uint32_t>(region), span.start_ticks, now, payload);
  return Span{now};
}

// Ends a span that began at `span` and writes its record.
template <typename Id>
KPROF_DEVICE void profile_stop(Track& track, const Span& span, Id region, uint32_t payload = 0) {
  profile_lap(track, span, region, payload);
}

// Like profile_stop, after the writer's outstanding memory operations have completed.
KPROF_DEVICE void profile_stop_complete(Track& track, const Span& span, uint32_t region, uint32_t payload = 0) {
  platform::drain_memory();
  profile_lap(track, span, region, payload);
}

// Records an instant.
template <typename Id>
KPROF_DEVICE void profile_mark(Track& track, Id region, uint32_t payload = 0) {
  if (RegionMoments<Id>::is_complete(region)) platform::drain_memory();
  const uint64_t now = clock_of(track);
  emit(track, static_cast<uint32_t>(region), now, now, payload);
}

// Records a value of a counter at this moment.
template <typename Id>
KPROF_DEVICE void profile_value(Track& track, Id region, uint32_t value) {
  profile_mark(track, region, value);
}

// A span from construction to the end of the scope.
class Scope {
 public:
  template <typename Id>
  KPROF_DEVICE Scope(Track& track, Id region, uint32_t payload = 0)
      : track_(track),
        span_(profile_start(track)),
        region_(static_cast<uint32_t>(region)),
        payload_(payload),
        is_complete_(RegionMoments<Id>::is_complete(region)) {}
  KPROF_DEVICE ~Scope() {
    if (is_complete_) platform::drain_memory();
    profile_stop(track_, span_, region_, payload_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Track& track_;
  Span span_;
  uint32_t region_;
  uint32_t payload_;
  bool is_complete_;
};

#else  // KPROF_ENABLED

// The same calls, which do nothing. What only their arguments need is dead code, which the compiler removes.
template <typename Source>
KPROF_DEVICE Track open_track(const Source&, TrackScope) {
  return {};
}
KPROF_DEVICE Span profile_start(const Track&) { return {}; }
template <typename Id>
KPROF_DEVICE Span profile_lap(Track&, Span, Id, uint32_t = 0) {
  return {};
}
template <typename Id>
KPROF_DEVICE void profile_stop(Track&, Span, Id, uint32_t = 0) {}
KPROF_DEVICE void profile_stop_complete(Track&, Span, uint32_t, uint32_t = 0) {}
template <typename Id>
KPROF_DEVICE void profile_mark(Track&, Id, uint32_t = 0) {}
template <typename Id>
KPROF_DEVICE void profile_value(Track&, Id, uint32_t) {}
struct [[maybe_unused]] Scope {
  template <typename... Arguments>
  KPROF_DEVICE explicit Scope(const Arguments&...) {}
};

#endif  // KPROF_ENABLED

}  // namespace kprof
