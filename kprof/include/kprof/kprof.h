// kprof's device API: records what happens inside a kernel, 16 bytes per event.
//
//   __global__ void kernel(..., kprof::Buffer prof) {
//     kprof::Track track = kprof::open_track(prof, kprof::per_warp);   // or per_block
//     kprof::Span span = kprof::profile_start(track);                   // reads the clock
//     while (!arrived(flag)) kprof::platform::pause();
//     kprof::profile_stop(track, span, R_WAIT, kprof::payload<R_WAIT>(peer, slot));
//   }
//
// Contract
//   * A track has one writer: lane 0 of the warp, or thread 0 of the block. The other threads execute the same calls
//     and store nothing. A null Buffer turns the stores off at run time; -DKPROF_ENABLED=0 removes the code.
//   * A track is one pointer in a register. Pass it by reference only to functions that are inlined: a track in local
//     memory costs more than everything else together.
//   * A region that regions.h declares `announced` tells of a span when it begins, for whoever looks while the kernel
//     hangs: give the region to `profile_start` as well, or use a Scope.
//   * Region ids come from regions.h (see declare_regions.h); 0 is reserved.
//   * With KPROF_ENABLED=0 these calls are empty functions, and a payload is 0. If a payload value takes memory reads
//     to compute, give it to `payload` as a lambda: the lambda is not called then, and the machine code equals that of
//     a kernel without kprof.
//   * Nothing is ever written outside the arena. What does not fit is counted, by region.
//   * Record an event from all lanes of a warp together, or always from the same single lane. If one track mixes both,
//     see KPROF_INLINE_REFILL (platform/cuda.h).
//   * A span ends when the call is issued; its loads and stores may still be in flight. A region that regions.h
//   declares
//     `complete` first waits for the writer's outstanding memory operations, so that the end says when data arrived and
//     not when it was asked for. That wait perturbs the kernel: operations no longer overlap across it.
//     `profile_stop_complete` does the same for kernels without a regions.h.
//   * -DKPROF_CLOCK_CYCLES=1 records the processor's cycle counter: steps of 0.5 ns, where NVIDIA's real-time clock has
//     32 ns. It costs a little more and adds a record that is not an event every 33 us. The decoder converts cycles to
//     the real-time clock.
//   * -DKPROF_DELAYS=1 lets `kprof verify` make spans of a region last longer: each spins at its end, as long as the
//     arena says when the track opens. Without it there is no code for that.
#pragma once

#include "abi.h"
#include "platform.h"
#include "wait_lines.h"

#ifndef KPROF_ENABLED
#define KPROF_ENABLED 1
#endif
#ifndef KPROF_CLOCK_CYCLES
#define KPROF_CLOCK_CYCLES 0
#endif
#ifndef KPROF_DELAYS
#define KPROF_DELAYS 0
#endif

namespace kprof {

// What a kernel knows about the arena, passed by value. The recorder makes one for each launch.
#if KPROF_ENABLED
using Buffer = LaunchBuffer;
#else
struct Buffer {};
#endif

// From the recorder's whole buffer (`LaunchBuffer.packed()` in Python), so that tracks find their reserved chunks.
KPROF_DEVICE_HOST Buffer make_buffer([[maybe_unused]] const LaunchBuffer& buffer) {
#if KPROF_ENABLED
  return buffer;
#else
  return {};
#endif
}

// From two numbers, which are easier to pass through an extension. No chunk is reserved: tracks claim every chunk.
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
  KPROF_DEVICE explicit Track(uintptr_t position, uintptr_t lines = kStoresNothing)
      : cursor(position), state_lines(lines) {}
#if KPROF_DELAYS
  KPROF_DEVICE Track(uintptr_t position, uintptr_t lines, uint32_t delay_word)
      : cursor(position), state_lines(lines), delay(delay_word) {}
#endif
  // Two copies would overwrite each other's records.
  Track(const Track&) = delete;
  Track& operator=(const Track&) = delete;
#if KPROF_CLOCK_CYCLES
  KPROF_DEVICE ~Track();
#endif
  // The address of the last record written; in a new chunk, 16 bytes before the first record. The hot path only tests
  // its low bits: records are 16-byte aligned, so bit 3 is free and means "store nothing", and when bits 4 to 9 are all
  // set the chunk is full.
  uintptr_t cursor;
  // The address of the lines for announced spans, with the bit kStoresNothing in threads that do not write. A kernel
  // without announced spans never reads it: it takes no register there.
  uintptr_t state_lines;
#if KPROF_DELAYS
  // Whose spans last longer, and by how much: `Delays.word`, or 0.
  uint32_t delay = 0;
#endif
#endif
};

// An open span. Lives in registers.
struct [[maybe_unused]] Span {
#if KPROF_ENABLED
  uint64_t start_ticks;
#endif
};

// An open span that waits, for `still_waiting`: `WaitSpan span = profile_start(track)`.
struct [[maybe_unused]] WaitSpan {
  KPROF_DEVICE WaitSpan([[maybe_unused]] const Span& begun)
#if KPROF_ENABLED
      : span(begun)
#endif
  {
  }
#if KPROF_ENABLED
  Span span;
  uint64_t* line = nullptr;  // what a zero closes, see wait_lines.h
  uint32_t told = 0;         // what the line says of the flag
#endif
};

#if KPROF_ENABLED

// The clock that the records of this translation unit use: the real-time clock, which all processors of a device share,
// or the processor's cycle counter, which has finer steps. The decoder converts cycles to the real-time clock.
#if KPROF_CLOCK_CYCLES
constexpr uint16_t kChunkFlags = kChunkClaimed | kChunkAbi | kChunkCycles;
KPROF_DEVICE uint64_t event_ticks() { return platform::cycle_ticks(); }
#else
constexpr uint16_t kChunkFlags = kChunkClaimed | kChunkAbi;
KPROF_DEVICE uint64_t event_ticks() { return platform::realtime_ticks(); }
#endif

// Offset of the slot before the first record of a chunk. The cursor of a lane that stores nothing moves through a chunk
// at address 0, in step with the writer's: all lanes of a warp then reach the end of the chunk at the same event.
constexpr uintptr_t kBeforeFirst = kChunkHeaderBytes - kRecordBytes;
constexpr uintptr_t kNowhere = kBeforeFirst | kStoresNothing;
constexpr uint32_t kFullMask = (kChunkBytes - 1) & ~(kRecordBytes - 1);

KPROF_DEVICE bool stores_nothing(uintptr_t cursor) { return (static_cast<uint32_t>(cursor) & kStoresNothing) != 0; }
KPROF_DEVICE bool is_full(uint32_t low_of_cursor) { return (~low_of_cursor & kFullMask) == 0; }
KPROF_DEVICE bool is_full(uintptr_t cursor) { return is_full(static_cast<uint32_t>(cursor)); }

// The cursor of a track that got no further chunk: the next event finds the chunk full again, and is counted as
// dropped.
KPROF_DEVICE uintptr_t before_full(uintptr_t full) { return (full - kRecordBytes) | kStoresNothing; }

KPROF_DEVICE ChunkHeader* chunk_of(uintptr_t cursor) {
  return reinterpret_cast<ChunkHeader*>(cursor & ~static_cast<uintptr_t>(kChunkBytes - 1));
}
KPROF_DEVICE char* chunk_address(ControlBlock* arena, uint32_t chunk_idx) {
  return reinterpret_cast<char*>(arena) + kChunksOffset + static_cast<size_t>(chunk_idx) * kChunkBytes;
}
// Sinks lie before the first chunk and have negative indices.
KPROF_DEVICE ControlBlock* arena_of(ChunkHeader* chunk) {
  const auto chunk_idx = static_cast<ptrdiff_t>(static_cast<int32_t>(chunk->chunk_idx));
  return reinterpret_cast<ControlBlock*>(reinterpret_cast<char*>(chunk) - kChunksOffset - chunk_idx * kChunkBytes);
}

KPROF_DEVICE SinkChunk* sink_of(ControlBlock* arena, uint32_t block) {
  return reinterpret_cast<SinkChunk*>(reinterpret_cast<char*>(arena) + kSinksOffset) + (block & (kNumSinks - 1));
}

// How claimable chunks are divided among the arena's cursors: cursor i hands out every num_cursors-th chunk, starting
// with chunk i, chunks_per_cursor in all. The number of cursors is a power of two.
struct Cursors {
  uint32_t chunks_per_cursor;
  uint32_t num_cursors;
};

// Asks one cursor; the answer is for `claimed_chunk`.
KPROF_DEVICE uint32_t take_turn(ControlBlock* arena, const Cursors& cursors, uint32_t cursor_idx) {
  return platform::count_global(&arena->cursors[cursor_idx & (cursors.num_cursors - 1)].next_chunk);
}

// The chunk that belongs to a turn of a cursor, or kNoChunk.
KPROF_DEVICE uint32_t claimed_chunk(const Cursors& cursors, uint32_t cursor_idx, uint32_t turn) {
  const uint32_t offset = cursor_idx & (cursors.num_cursors - 1);
  return turn < cursors.chunks_per_cursor ? turn * cursors.num_cursors + offset : kNoChunk;
}

// Remembers that the arena is full. A cursor that has nothing left goes on counting, and must never come round to 0,
// where it would hand out chunks again. Reads it once more: few registers are free where this is inlined.
KPROF_DEVICE void give_up(ControlBlock* arena, const Cursors& cursors, uint32_t block) {
  if (platform::load_global(&arena->full_limit) < cursors.chunks_per_cursor)
    platform::store_global(&arena->full_limit, cursors.chunks_per_cursor);
  uint32_t* next_chunk = &arena->cursors[block & (cursors.num_cursors - 1)].next_chunk;
  if (platform::load_global(next_chunk) > kSpentTurn) platform::store_global(next_chunk, kSpentTurn);
}

// The chunk of this block's turn, else a free one of another cursor. Returns kNoChunk when the arena is full. The loop
// has a single exit: with two, nvcc makes every event wait for the whole warp (WARPSYNC after the refill).
KPROF_DEVICE uint32_t claim_chunk(ControlBlock* arena, const Cursors& cursors, uint32_t block, uint32_t turn) {
  uint32_t chunk_idx = claimed_chunk(cursors, block, turn);
  uint32_t tries = 1;
  KPROF_UNROLL(1)
  // full_limit remembers that the arena is full, so that later tracks give up after one cursor unless their limit is
  // higher.
  while (chunk_idx == kNoChunk && tries < cursors.num_cursors &&
         platform::load_global(&arena->full_limit) < cursors.chunks_per_cursor) {
    chunk_idx = claimed_chunk(cursors, block + tries, take_turn(arena, cursors, block + tries));
    ++tries;
  }
  if (chunk_idx == kNoChunk) give_up(arena, cursors, block);
  return chunk_idx;
}
KPROF_DEVICE uint32_t claim_chunk(ControlBlock* arena, const Cursors& cursors, uint32_t block) {
  return claim_chunk(arena, cursors, block, take_turn(arena, cursors, block));
}

// Writes the header of a new chunk and returns its cursor: the slot before the first record.
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
  platform::store_header(chunk, header);
  return reinterpret_cast<uintptr_t>(chunk) + kBeforeFirst;
}

// Counts an event for which there was no room: by region, and in the track's last chunk if it ever had one.
KPROF_DEVICE void count_dropped(ChunkHeader* last, uint32_t region) {
  const bool is_sink = static_cast<int32_t>(last->chunk_idx) < 0;
  if (!is_sink && last->num_dropped != ~0u) ++last->num_dropped;
  SinkChunk* sink = is_sink ? reinterpret_cast<SinkChunk*>(last) : sink_of(arena_of(last), last->block);
  platform::add_global(&sink->num_dropped_of_region[platform::at_most(region, kNumDropCounters - 1)], uint64_t{1});
}

// Called when a track's chunk is full; returns the new cursor. Everything it needs is in the header of the full chunk:
// one memory read, one atomic, one new header.
KPROF_DEVICE uintptr_t refill(uintptr_t cursor) {
  ChunkHeader* last = chunk_of(cursor);
  const Cursors cursors{last->chunks_per_cursor, (last->flags >> kChunkCursorsShift) & kChunkCursorsMask};
  ControlBlock* arena = arena_of(last);
  const uint32_t chunk_idx = claim_chunk(arena, cursors, last->block);
  // Reads the header again: its cache line is close now, and the surrounding kernel may need the registers.
  if (chunk_idx != kNoChunk)
    return begin_chunk(arena, cursors, chunk_idx, last->block, last->warp, last->launch, last->chunk_idx);
  last->flags |= kChunkNoNext;
  return before_full(cursor);
}

// Stores an anchor, a record that is not an event: both clocks, read at the same moment.
KPROF_DEVICE void store_anchor(uintptr_t& cursor) {
  uint64_t realtime = 0, cycles = 0;
  platform::read_anchor(&realtime, &cycles);
  platform::store_record(cursor, cycles, kAnchorRegionId, static_cast<uint32_t>(realtime),
                         static_cast<uint32_t>(realtime >> 32));
}

// A span is long if its start and end differ in one of these bits. With the cycle counter that is 33 us at 2 GHz, so
// that a track with few events still samples both clocks often enough (on some SMs of an H200, cycles drift against
// time by 0.05 % within milliseconds). With the real-time clock it is a second or more, shortly before the duration
// field saturates.
constexpr uint32_t kLongSpanMask = ~0u << (KPROF_CLOCK_CYCLES ? 16 : 31);
KPROF_DEVICE bool is_long(uint64_t start_ticks, uint64_t end_ticks) {
  const uint32_t low = static_cast<uint32_t>(start_ticks) ^ static_cast<uint32_t>(end_ticks);
  const uint32_t high = static_cast<uint32_t>(start_ticks >> 32) ^ static_cast<uint32_t>(end_ticks >> 32);
  return ((low & kLongSpanMask) | high) != 0;
}

// Handles the rare cases after a record was stored: the chunk is full, or the span is long. Returns the new cursor. It
// takes few arguments because values that live across a call occupy registers of the kernel.
KPROF_COLD uintptr_t handle_rare(uintptr_t cursor, uint32_t region, uint32_t high_of_duration) {
  if (stores_nothing(cursor)) {
    if (!is_full(cursor)) return cursor;
    if (chunk_of(cursor) == nullptr) return kNowhere;
    count_dropped(chunk_of(cursor), region);
    return before_full(cursor);
  }
  auto* record = reinterpret_cast<Record*>(cursor);
  if (high_of_duration != 0 || record->duration_ticks > kDurationSaturated) record->duration_ticks = kDurationSaturated;
#if KPROF_CLOCK_CYCLES
  // If the chunk is full, the header of the next one has both clocks anyway.
  if (!is_full(cursor)) store_anchor(cursor);
#endif
  return is_full(cursor) ? refill(cursor) : cursor;
}

// All lanes execute this together. The store and the step are predicated. The only branch comes after them, so that
// they do not wait for it; it is taken once in 61 events.
KPROF_DEVICE void emit(Track& track, uint32_t region, uint64_t start_ticks, uint64_t end_ticks, uint32_t payload) {
  const uint32_t low_of_cursor = platform::store_record(track.cursor, start_ticks, region,
                                                        static_cast<uint32_t>(end_ticks - start_ticks), payload);
  // `|` on ints gives one branch for both conditions; `||` would give two.
  if (__builtin_expect(static_cast<int>(is_full(low_of_cursor)) | static_cast<int>(is_long(start_ticks, end_ticks)), 0))
    track.cursor = handle_rare(track.cursor, region, platform::high_of_difference(end_ticks, start_ticks));
}

#if KPROF_CLOCK_CYCLES
// A last anchor at the end of the track, if the chunk has room.
KPROF_DEVICE Track::~Track() {
  if (!stores_nothing(cursor)) store_anchor(cursor);
}
#endif

// The chunk that the host reserved for a track, if it did.
struct ReservedChunk {
  bool has_one;
  uint32_t chunk_idx;
};

// Computed without any memory access. Blocks before the first one have offsets beyond all reserved ones.
KPROF_DEVICE ReservedChunk reserved_chunk(const Buffer& buffer, uint32_t block, uint32_t track_idx = 0) {
  const uint32_t offset = (block - buffer.first_block) * buffer.tracks_per_block + track_idx;
  return {offset < buffer.num_reserved, buffer.first_chunk + offset};
}

// Counts the runs of a launch: a buffer that goes to several makes them write over each other's records. Nobody waits.
KPROF_DEVICE void count_run(ControlBlock* arena, const Buffer& buffer, uint32_t chunk_idx) {
  if (chunk_idx == buffer.first_chunk) platform::add_global(&arena->cursors[0].num_reserved_runs, 1u);
}

// Whether a launch records only tracks with reserved chunks.
KPROF_DEVICE bool leaves_out(const Buffer& buffer) { return (buffer.options & kOnlyReserved) != 0; }

static_assert(offsetof(ControlBlock, num_cursors) - offsetof(ControlBlock, num_chunks) == 12, "read as four words");
static_assert(offsetof(ControlBlock, chunks_per_cursor) - offsetof(ControlBlock, num_chunks) == 4, "the second word");

// The switches as they are in this launch, in two reads that do not wait for each other.
KPROF_DEVICE Switches read_switches(const ControlBlock* arena) {
  uint32_t words[8];
  platform::load_launch_constants(&arena->switches.is_off, words);
  platform::load_launch_constants(&arena->switches.sample_mask, words + 4);
  return Switches{words[0], words[1], words[2], words[3], words[4], words[5], 0};
}

// Whether the switches exclude this track.
KPROF_DEVICE bool is_left_out(const Switches& switches, uint32_t block, uint32_t warp) {
  const uint32_t num_blocks = switches.num_blocks, warps = switches.warps;
  const bool is_block = num_blocks == 0 || block - switches.first_block < num_blocks;
  const bool is_warp = warps == 0 || warp == kBlockTrackWarp || (warps >> (warp & 31) & 1) != 0;
  // Fibonacci hashing: neighbours fall into different samples.
  const bool is_sampled = ((block * 33 + warp) * 0x9E3779B1u >> 16 & switches.sample_mask) == 0;
  return switches.is_off != 0 || !is_block || !is_warp || !is_sampled;
}

// The arena that launches with switches currently record into.
KPROF_DEVICE ControlBlock* arena_moved_by(ControlBlock* arena, uint32_t kib) {
  return reinterpret_cast<ControlBlock*>(reinterpret_cast<char*>(arena) + static_cast<size_t>(kib) * 1024);
}

// The result of claiming a track's first chunk. Lower half: the chunk, or kNoChunk if there was none, or kLeftOut if
// the track is excluded. Upper half: the distance in KiB to the arena that the chunk is in.
using FirstClaim = uint64_t;

// Applies the switches, then claims the first chunk of a track for which the host reserved none.
KPROF_DEVICE FirstClaim claim_with_switches(ControlBlock* arena, Cursors cursors, uint32_t block, uint32_t warp,
                                            uint32_t options) {
  uint32_t arena_kib = 0;
  if ((options & kLooksAtSwitches) != 0) {
    const Switches switches = read_switches(arena);
    if (is_left_out(switches, block, warp)) return kLeftOut;
    arena_kib = switches.arena_kib;
  }
  return static_cast<FirstClaim>(arena_kib) << 32 | claim_chunk(arena_moved_by(arena, arena_kib), cursors, block);
}

// The cursor of a new track that has no reserved chunk. Not part of open_track: a launch starts with a cold instruction
// cache, and code that is jumped over costs another fetch. All lanes call it together.
KPROF_COLD uintptr_t open_claimed(ControlBlock* arena, Cursors cursors, uint32_t block, uint32_t warp, uint32_t launch,
                                  uint32_t options, bool is_writer) {
  if (!is_writer) return kNowhere;
  // A buffer made from two numbers does not carry the limits.
  if (cursors.num_cursors == 0) {
    uint32_t words[4];
    platform::load_launch_constants(&arena->num_chunks, words);
    cursors = {words[1], words[3]};
  }
  const FirstClaim claim = claim_with_switches(arena, cursors, block, warp, options);
  const auto chunk_idx = static_cast<uint32_t>(claim);
  arena = arena_moved_by(arena, static_cast<uint32_t>(claim >> 32));
  if (chunk_idx == kLeftOut) return kNowhere;
  if (chunk_idx != kNoChunk) return begin_chunk(arena, cursors, chunk_idx, block, warp, launch, kNoChunk);
  platform::add_global(&arena->cursors[block & (cursors.num_cursors - 1)].num_tracks_without_chunk, uint64_t{1});
  return before_full(reinterpret_cast<uintptr_t>(sink_of(arena, block)) + kFullMask);
}

// The state lines of a track that has just been opened.
KPROF_DEVICE uintptr_t state_lines_of(const Buffer& buffer, uint32_t block, uint32_t warp, uintptr_t cursor) {
  if (stores_nothing(cursor)) return kStoresNothing;
  return state_lines_of(reinterpret_cast<const ControlBlock*>(buffer.arena), buffer.launch, block, warp);
}

#if KPROF_DELAYS
// What delays the spans of a block in this launch: the region and a length, or 0.
KPROF_DEVICE uint32_t delay_of(const Buffer& buffer, uint32_t block) {
  const Delays& delays = reinterpret_cast<const ControlBlock*>(buffer.arena)->delays;
  uint32_t words[4];  // word, every, is_beyond_delayed, reserved
  platform::load_launch_constants(&delays.word, words);
  if (words[0] == 0 || (words[1] != 0 && buffer.launch % words[1] != 0)) return 0;
  if (block >= kNumDelayedBlocks) return words[2] != 0 ? words[0] : 0;
  return (platform::load_global(&delays.blocks[block / 32]) >> (block & 31) & 1) != 0 ? words[0] : 0;
}
// Spins where the region of a span that ends is the one that `delay_of` named.
KPROF_DEVICE void delay_span(uint32_t delay, uint32_t region) {
  if (__builtin_expect(delay >> kDelayBits != region, 1)) return;
  const uint32_t length = delay & ((1u << kDelayBits) - 1), mantissa = (1u << kDelayMantissaBits) - 1;
  const uint32_t ticks = (length & mantissa) << (length >> kDelayMantissaBits);
  const uint64_t begin = platform::realtime_ticks();
  while (platform::realtime_ticks() - begin < ticks) {
  }
}
// Lanes that do not write wait for the one that does.
KPROF_DEVICE void delay_end(const Track& track, uint32_t region) { delay_span(track.delay, region); }
#else
KPROF_DEVICE void delay_end(const Track&, uint32_t) {}
#endif

// A track at a cursor, with what it reads from the arena.
KPROF_DEVICE Track opened_at(uintptr_t cursor, const Buffer& buffer, uint32_t block, uint32_t warp) {
#if KPROF_DELAYS
  const uint32_t delay_word = stores_nothing(cursor) ? 0 : delay_of(buffer, block);
  return Track{cursor, state_lines_of(buffer, block, warp, cursor), delay_word};
#else
  return Track{cursor, state_lines_of(buffer, block, warp, cursor)};
#endif
}

// Opens the track of the calling warp or block. Call it from all threads. If the launch was given `tracks_per_block` or
// is captured in a graph, call it once per kernel for each warp (block); otherwise a warp may open several tracks.
KPROF_DEVICE Track open_track(const Buffer& buffer, TrackScope scope) {
  if (buffer.arena == 0) return Track{kNowhere};
  const bool is_writer = scope == per_warp ? platform::lane_id() == 0 : platform::thread_id() == 0;
  auto* arena = reinterpret_cast<ControlBlock*>(buffer.arena);
  const uint32_t block = platform::block_id();
  const uint32_t warp = scope == per_warp ? platform::warp_id() : kBlockTrackWarp;
  const Cursors cursors{buffer.chunks_per_cursor, buffer.num_cursors};
  ReservedChunk reserved = reserved_chunk(buffer, block, scope == per_warp ? warp : 0);
  if (scope == per_warp) reserved.has_one &= warp < buffer.tracks_per_block;
  if (__builtin_expect(!reserved.has_one, 0)) {
    if (leaves_out(buffer)) return Track{kNowhere};
    const uintptr_t cursor = open_claimed(arena, cursors, block, warp, buffer.launch, buffer.options, is_writer);
    return opened_at(cursor, buffer, block, warp);
  }
  if (!is_writer) return Track{kNowhere};
  count_run(arena, buffer, reserved.chunk_idx);
  const uintptr_t cursor = begin_chunk(arena, cursors, reserved.chunk_idx, block, warp, buffer.launch, kNoChunk);
  return opened_at(cursor, buffer, block, warp);
}

// On a GPU every lane reads the clock, because selecting the writer costs more.
KPROF_DEVICE uint64_t clock_of(const Track& track) {
  if (!platform::kLanesShareClock && stores_nothing(track.cursor)) return 0;
  return event_ticks();
}

KPROF_DEVICE Span profile_start(const Track& track) { return Span{clock_of(track)}; }

// Whether a region ends only when its memory operations have completed, and which state line it has, -1 where it is not
// announced. declare_regions.h specialises this for the ids that it declares.
template <typename Id>
struct RegionMoments {
  KPROF_DEVICE static constexpr bool is_complete(Id) { return false; }
  KPROF_DEVICE static constexpr int line_of(Id) { return -1; }
};

// Tells that a span of an announced region has begun: one store. Spans of other regions are not told, and cost nothing.
// The end of the span needs no call of its own. For a span whose beginning is already known (`profile_lap`).
template <typename Id>
KPROF_DEVICE void announce(const Track& track, const Span& span, Id region, uint32_t payload = 0) {
  const int line = RegionMoments<Id>::line_of(region);
  if (line < 0) return;
  platform::store_state(track.state_lines + static_cast<uint32_t>(line) * sizeof(StateLine), span.start_ticks,
                        static_cast<uint32_t>(region),
                        chunk_and_tag(track.cursor, span.start_ticks, static_cast<uint32_t>(region)), payload);
}

// Begins a span of a region, and tells so if regions.h declares it `announced`.
template <typename Id>
KPROF_DEVICE Span profile_start(const Track& track, Id region, uint32_t payload = 0) {
  const Span span = profile_start(track);
  announce(track, span, region, payload);
  return span;
}

// Takes back what was announced, where the host does not see the record that says that the span has ended.
KPROF_DEVICE void end_announced(const Track& track, int line) {
  if (platform::kHostSeesRecords || line < 0 || stores_nothing(track.state_lines)) return;
  auto* lines = reinterpret_cast<uint64_t*>(track.state_lines);
  platform::store_system(lines + static_cast<uint32_t>(line) * (sizeof(StateLine) / 8), uint64_t{0});
}

// profile_stop and profile_start with a single clock reading: back-to-back spans without a gap.
template <typename Id>
KPROF_DEVICE Span profile_lap(Track& track, const Span& span, Id region, uint32_t payload = 0) {
  if (RegionMoments<Id>::is_complete(region)) platform::drain_memory();
  delay_end(track, static_cast<uint32_t>(region));
  const uint64_t now = clock_of(track);
  emit(track, static_cast<uint32_t>(region), span.start_ticks, now, payload);
  end_announced(track, RegionMoments<Id>::line_of(region));
  return Span{now};
}

// Ends a span and writes its record.
template <typename Id>
KPROF_DEVICE void profile_stop(Track& track, const Span& span, Id region, uint32_t payload = 0) {
  profile_lap(track, span, region, payload);
}

// When a wait counts as long. In cycles: 65 us at 2 GHz.
constexpr uint64_t kLateEventTicks = KPROF_CLOCK_CYCLES ? uint64_t{1} << 17 : kLateTicks;

// Only its chunk says which launch a track belongs to. A track that never got one has no line.
KPROF_DEVICE bool has_chunk(uintptr_t cursor) {
  const ChunkHeader* chunk = chunk_of(cursor);
  return chunk != nullptr && static_cast<int32_t>(chunk->chunk_idx) >= 0;
}

KPROF_COLD uint64_t* open_wait(uintptr_t cursor, uint64_t start_ticks, uint32_t region, uint32_t payload, Flag flag) {
  if (!has_chunk(cursor)) return nullptr;
  ChunkHeader* chunk = chunk_of(cursor);
  // Lines hold the real-time clock, whatever records hold.
  const uint64_t begin_ticks = KPROF_CLOCK_CYCLES ? platform::realtime_ticks() - kLateTicks : start_ticks;
  return open_wait_line(arena_of(chunk), chunk->launch, chunk->block, chunk->warp, begin_ticks, region, payload, flag);
}

// For the loop of a wait: says once that the wait lasts long, so that kprof can tell who waits for whom when a kernel
// hangs. The end of the span takes it back. Until the wait is long this only reads the clock; call it every so many
// polls where the loop is short.
//
//   kprof::WaitSpan span = kprof::profile_start(track);
//   while ((held = load(flag)) < epoch)
//     kprof::still_waiting(track, span, R_WAIT, kprof::payload<R_WAIT>(peer, slot), {held, epoch});
//   kprof::profile_stop(track, span, R_WAIT, kprof::payload<R_WAIT>(peer, slot));
//
// What the flag holds and should hold may be left out. While the wait is open, every change of `held` is told.
template <typename Id>
KPROF_DEVICE void still_waiting(const Track& track, WaitSpan& wait, Id region, uint32_t payload = 0, Flag flag = {}) {
  if (wait.line != nullptr) return tell_flag(wait.line, wait.told, flag.held);
  if (__builtin_expect(clock_of(track) - wait.span.start_ticks < kLateEventTicks, 1)) return;
  wait.line = open_wait(track.cursor, wait.span.start_ticks, static_cast<uint32_t>(region), payload, flag);
  wait.told = flag.held;
}

// The same for a wait. A function of its own, so that spans that are no waits do not look for a line.
template <typename Id>
KPROF_DEVICE Span profile_lap(Track& track, const WaitSpan& wait, Id region, uint32_t payload = 0) {
  const Span next = profile_lap(track, wait.span, region, payload);
  if (__builtin_expect(wait.line != nullptr, 0)) close_wait_line(arena_of(chunk_of(track.cursor)), wait.line);
  return next;
}
template <typename Id>
KPROF_DEVICE void profile_stop(Track& track, const WaitSpan& wait, Id region, uint32_t payload = 0) {
  profile_lap(track, wait, region, payload);
}

// Like profile_stop, after the writer's outstanding memory operations have completed.
KPROF_DEVICE void profile_stop_complete(Track& track, const Span& span, uint32_t region, uint32_t payload = 0) {
  platform::drain_memory();
  profile_lap(track, span, region, payload);
}

// Records a moment, as a span of length 0.
template <typename Id>
KPROF_DEVICE void profile_mark(Track& track, Id region, uint32_t payload = 0) {
  if (RegionMoments<Id>::is_complete(region)) platform::drain_memory();
  const uint64_t now = clock_of(track);
  emit(track, static_cast<uint32_t>(region), now, now, payload);
}

// Records the value of a counter now.
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
        span_(profile_start(track, region, payload)),
        region_(static_cast<uint32_t>(region)),
        payload_(payload),
        is_complete_(RegionMoments<Id>::is_complete(region)),
        line_(RegionMoments<Id>::line_of(region)) {}
  KPROF_DEVICE ~Scope() {
    if (is_complete_) platform::drain_memory();
    profile_stop(track_, span_, region_, payload_);
    end_announced(track_, line_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Track& track_;
  Span span_;
  uint32_t region_;
  uint32_t payload_;
  bool is_complete_;
  int line_;
};

#else  // KPROF_ENABLED

// The same calls, doing nothing. The compiler removes code that only computes their arguments.
template <typename Source>
KPROF_DEVICE Track open_track(const Source&, TrackScope) {
  return {};
}
KPROF_DEVICE Span profile_start(const Track&) { return {}; }
template <typename Id>
KPROF_DEVICE Span profile_start(const Track&, Id, uint32_t = 0) {
  return {};
}
template <typename Id>
KPROF_DEVICE void announce(const Track&, const Span&, Id, uint32_t = 0) {}
// Of a Span or a WaitSpan.
template <typename AnySpan, typename Id>
KPROF_DEVICE Span profile_lap(Track&, const AnySpan&, Id, uint32_t = 0) {
  return {};
}
template <typename AnySpan, typename Id>
KPROF_DEVICE void profile_stop(Track&, const AnySpan&, Id, uint32_t = 0) {}
KPROF_DEVICE void profile_stop_complete(Track&, Span, uint32_t, uint32_t = 0) {}
template <typename Id>
KPROF_DEVICE void still_waiting(const Track&, WaitSpan&, Id, uint32_t = 0, Flag = {}) {}
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
