// Two ranks exchange rows: every block computes its items, writes each to the block of its number on the other rank,
// and takes what that one writes. What is planted is real work: more rounds of arithmetic, more items, a later start.
//
// All blocks of a number meet across the ranks before anything is recorded, so that two launches begin within a
// microsecond; `late_ns` is what a rank adds to that. A row is 2 KiB; rounds of arithmetic depend on each other, so
// their time is the device's latency and the same in every block.
#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

using namespace kprof::platform;

// Not an unnamed namespace: a function with a parameter of a type from one is not exported.
namespace plants {

constexpr uint32_t kWordsPerRow = 512;

// One rank's part of the symmetric heap: flags of starts, flags of rows, rows. One slot per block and item.
struct Part {
  uint32_t* started;
  uint32_t* arrived;
  uint32_t* rows;
};

KPROF_DEVICE Part part_of(uint8_t* base, uint32_t num_slots) {
  uint32_t* words = reinterpret_cast<uint32_t*>(base);
  return {words, words + num_blocks(), words + num_blocks() + num_slots};
}

KPROF_DEVICE uint32_t compute(uint32_t value, int32_t rounds) {
  for (int32_t i = 0; i < rounds; ++i) value = (value ^ (value >> 13)) * 1664525u + 1013904223u;
  return value;
}

KPROF_DEVICE void wait_for(const uint32_t* flag, uint32_t epoch) {
  if (thread_id() == 0) {
    while (load_system(flag) < epoch) pause();
    fence_acquire_system();
  }
  sync_block();
}

KPROF_DEVICE void tell(uint32_t* flag, uint32_t epoch) {
  release_block_system();
  if (thread_id() == 0) store_system(flag, epoch);
}

struct Call {
  uint8_t* mine;
  uint8_t* theirs;
  const int32_t* rounds;        // [num_blocks] of one item
  const int32_t* items;         // [num_blocks] that this rank computes and sends
  const int32_t* items_theirs;  // [num_blocks] that come
  uint32_t* sink;               // [num_blocks], so that no work is optimised away
  uint64_t late_ns;
  uint32_t rank;
  uint32_t epoch;
  uint32_t max_items;
};

__global__ void exchange(Call call, kprof::Buffer prof) {
  const uint32_t block = block_id(), slots = num_blocks() * call.max_items, other = 1 - call.rank;
  const Part mine = part_of(call.mine, slots), theirs = part_of(call.theirs, slots);
  tell(&theirs.started[block], call.epoch);
  wait_for(&mine.started[block], call.epoch);
  const uint64_t begin = realtime_ticks() + call.late_ns * (kRealtimeTicksPerSecond / 1000000) / 1000;
  while (realtime_ticks() < begin) pause();
  sync_block();

  kprof::Track track = kprof::open_track(prof, kprof::per_block);
  const int32_t rounds = call.rounds[block];
  uint32_t value = call.epoch + thread_id();
  kprof::Span span = kprof::profile_start(track);
  for (int32_t item = 0; item < call.items[block]; ++item) {
    const uint32_t slot = block * call.max_items + item;
    value = compute(value, rounds);
    sync_block();
    span = kprof::profile_lap(track, span, R_COMPUTE, 0);
    for (uint32_t i = thread_id(); i < kWordsPerRow; i += num_threads()) theirs.rows[slot * kWordsPerRow + i] = value;
    tell(&theirs.arrived[slot], call.epoch);
    sync_block();
    span = kprof::profile_lap(track, span, R_SEND, kprof::payload<R_SEND>(other, slot));
  }
  for (int32_t item = 0; item < call.items_theirs[block]; ++item) {
    const uint32_t slot = block * call.max_items + item;
    wait_for(&mine.arrived[slot], call.epoch);
    span = kprof::profile_lap(track, span, R_WAIT, kprof::payload<R_WAIT>(other, slot));
    for (uint32_t i = thread_id(); i < kWordsPerRow; i += num_threads()) value += mine.rows[slot * kWordsPerRow + i];
    value = compute(value, rounds / 4);
    sync_block();
    span = kprof::profile_lap(track, span, R_REDUCE, 0);
  }
  value = compute(value, rounds);
  sync_block();
  kprof::profile_stop(track, span, R_FINISH, 0);
  if (thread_id() == 0) call.sink[block] = value;
}

}  // namespace plants

extern "C" int plants_exchange(const plants::Call* call, int num_blocks, int threads_per_block, void* stream,
                               const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(plants::exchange, num_blocks, threads_per_block, stream, 0, *call, kprof::make_buffer(*buffer));
}
