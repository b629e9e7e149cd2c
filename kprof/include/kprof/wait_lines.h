// The lines that say what tracks do: StateLine and WaitLine of abi.h. kprof.h has the calls for kernels.
//
// State lines are in device memory: a span that is announced stores 16 bytes there when it begins. Wait lines are in
// memory of the host, for waits that last long. That memory outlives the process: kprof reads it while a kernel spins
// for ever, after a trap and after kill -9. A store there is slow (0.2 us on an H200), so a line is written once per
// wait, when that has lasted kLateTicks, and once more at its end. Waits that are shorter write nothing.
#pragma once

#include "abi.h"
#include "platform.h"

namespace kprof {

// 50 us.
constexpr uint64_t kLateTicks = platform::kRealtimeTicksPerSecond / 20000;

// The place of a track in a table for `num_tracks`, a power of two. Tracks of a launch have places of their own while
// there are enough; launches that overlap may write over each other's lines.
KPROF_DEVICE uint32_t place_of_track(uint32_t num_tracks, uint32_t launch, uint32_t block, uint32_t warp) {
  const uint32_t num_warps = (platform::num_threads() + platform::warp_width() - 1) / platform::warp_width();
  const uint32_t place = warp == kBlockTrackWarp ? 0 : 1 + warp;
  return (block * (num_warps + 1) + place + 61 * launch) & (num_tracks - 1);
}

constexpr uint32_t kMaxLinesTried = 256;

// Whether all lines were taken: no wait is told there, only that there was none.
KPROF_DEVICE bool is_last_line(const ControlBlock* arena, const uint64_t* words) {
  return words == reinterpret_cast<const uint64_t*>(reinterpret_cast<const WaitLine*>(arena->shared_lines) +
                                                    (arena->num_shared_lines - 1));
}

// The first free line from `place` on, which is this wait's from now on. Else the last one, which is nobody's.
KPROF_DEVICE WaitLine* claim_wait_line(const ControlBlock* arena, uint32_t place) {
  auto* claims = reinterpret_cast<uint32_t*>(arena->line_claims);
  const uint32_t last = arena->num_shared_lines - 1;
  uint32_t tries = 0;
  KPROF_UNROLL(1)
  while (tries < kMaxLinesTried && (place == last || platform::exchange_if_zero_device(claims + place, 1u) != 0)) {
    place = (place + 1) & last;
    ++tries;
  }
  return reinterpret_cast<WaitLine*>(arena->shared_lines) + (tries < kMaxLinesTried ? place : last);
}

// The address of the state lines of a track; kStoresNothing where the arena has none.
KPROF_DEVICE uintptr_t state_lines_of(const ControlBlock* arena, uint32_t launch, uint32_t block, uint32_t warp) {
  const uint32_t num_tracks = arena->num_lines;
  if (num_tracks == 0) return kStoresNothing;
  const uint32_t place = place_of_track(num_tracks, launch, block, warp);
  return static_cast<uintptr_t>(arena->lines) + static_cast<uintptr_t>(place) * (kLinesPerTrack * sizeof(StateLine));
}

// The chunk of a cursor, and a tag of the other word of the line: the two words may arrive in any order, and a reader
// must not take the chunk and the payload of one span for another's.
KPROF_DEVICE uint32_t chunk_and_tag(uintptr_t cursor, uint64_t start_ticks, uint32_t region) {
  const auto start = static_cast<uint32_t>(start_ticks);
  const uint32_t tag = start ^ start >> kStateTagShift ^ region;
  const auto chunk = static_cast<uint32_t>(cursor / kChunkBytes);
  return (chunk & ((1u << kStateChunkBits) - 1)) | tag << kStateChunkBits;
}

// The flag that a wait reads: what it holds, and what the wait is for. `wanted` 0: nothing is known of it.
struct Flag {
  uint32_t held = 0;
  uint32_t wanted = 0;
};

// Writes a line for a wait. Returns the word that holds the region, nullptr where the arena has no lines: a zero there
// closes the line. System scope: on AMD the line would stay in an L2 cache otherwise. The region arrives after the
// rest, so that a reader sees no line that is half written.
KPROF_COLD uint64_t* open_wait_line(const ControlBlock* arena, uint32_t launch, uint32_t block, uint32_t warp,
                                    uint64_t start_ticks, uint32_t region, uint32_t payload, Flag flag) {
  block = platform::opaque(block);
  warp = platform::opaque(warp);
  const uint32_t num_lines = arena->num_shared_lines;
  if (num_lines == 0) return nullptr;
  auto* words = reinterpret_cast<uint64_t*>(claim_wait_line(arena, place_of_track(num_lines, launch, block, warp)));
  platform::store_system(words, start_ticks);
  if (is_last_line(arena, words)) return words + 1;
  platform::store_system(words + 2, static_cast<uint64_t>(block) << 32 | launch);
  platform::store_system(words + 3, static_cast<uint64_t>(flag.held) << 32 | warp);
  platform::store_system(words + 4, static_cast<uint64_t>(flag.wanted));
  platform::order_system_stores();
  platform::store_system(words + 1, static_cast<uint64_t>(payload) << 32 | region);
  return words + 1;
}

// Lets another wait have the line. What stands there stays until then.
KPROF_DEVICE void release_wait_line(const ControlBlock* arena, const uint64_t* line) {
  const uint64_t offset = reinterpret_cast<uintptr_t>(line) - static_cast<uintptr_t>(arena->shared_lines);
  platform::store_global(reinterpret_cast<uint32_t*>(arena->line_claims) + offset / sizeof(WaitLine), 0u);
}

// The wait has ended. Its zero must have arrived before another wait writes there.
KPROF_COLD void close_wait_line(const ControlBlock* arena, uint64_t* line) {
  platform::store_system(line, uint64_t{0});
  platform::order_system_stores();
  release_wait_line(arena, line);
}

static_assert(offsetof(WaitLine, held) == offsetof(WaitLine, region) + 20, "from the word that open_wait_line returns");

// Tells what the flag of an open line holds by now, where that has changed.
KPROF_DEVICE void tell_flag(uint64_t* line, uint32_t& told, uint32_t held) {
  if (held == told) return;
  told = held;
  platform::store_system(reinterpret_cast<uint32_t*>(line) + 5, held);
}

}  // namespace kprof
