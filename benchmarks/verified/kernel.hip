// Every place packs some items, tells all others, waits for all others, and reduces as many items. Work lasts a time by
// the clock, longer where a place is slow: cores that are faster at times would be other causes than the planted one.
//
// A place is a block of a rank: the ranks have one each on the CPU target, where blocks of a rank take turns, and one
// rank has all of them on a GPU. Few blocks, because they spin: all must have a place on the device at a time.
#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

using namespace kprof::platform;

struct Call {
  uint64_t started;  // a flag for each pair of places: that of place b which place a sets is a * num_places + b
  uint64_t packed;
  uint64_t ticks;  // of each place: how long it packs an item, and how long it reduces one
  uint32_t rank;
  uint32_t num_ranks;
  uint32_t epoch;
  uint32_t items;

  KPROF_DEVICE uint32_t num_places() const { return num_ranks * num_blocks(); }
  KPROF_DEVICE uint32_t place() const { return rank * num_blocks() + block_id(); }
  // The i-th after this one.
  KPROF_DEVICE uint32_t peer(uint32_t i) const { return (place() + i) % num_places(); }
};

KPROF_DEVICE void work(uint32_t ticks) {
  const uint64_t begin = realtime_ticks();
  while (realtime_ticks() - begin < ticks) {
  }
}

// Of a message between two places, by the blocks that they are of their ranks.
KPROF_DEVICE uint32_t slot_of(uint32_t from, uint32_t to) {
  return from % num_blocks() * num_blocks() + to % num_blocks();
}

KPROF_DEVICE void tell(const Call& call, uint64_t flags, uint32_t peer) {
  fence_release_system();
  store_system(reinterpret_cast<uint32_t*>(flags) + call.place() * call.num_places() + peer, call.epoch);
}

KPROF_DEVICE void wait_for(const Call& call, uint64_t flags, uint32_t peer) {
  const uint32_t* flag = reinterpret_cast<uint32_t*>(flags) + peer * call.num_places() + call.place();
  // A rank has a core of its own, and one that sleeps wakes up 50 us later; blocks of a rank share it.
  const uint32_t most_looks = num_blocks() > 1 ? 0 : 1u << 20;
  for (uint32_t looks = 0; load_system(flag) < call.epoch; ++looks) {
    if (looks >= most_looks) pause();
  }
  fence_acquire_system();
}

__global__ void exchange(Call call, kprof::Buffer prof) {
  // Nothing is recorded before all have begun.
  for (uint32_t peer = 0; peer < call.num_places(); ++peer) tell(call, call.started, peer);
  for (uint32_t peer = 0; peer < call.num_places(); ++peer) wait_for(call, call.started, peer);
  const uint32_t* ticks = reinterpret_cast<uint32_t*>(call.ticks) + 2 * call.place();
  const uint32_t pack_ticks = ticks[0], reduce_ticks = ticks[1];
  kprof::Track track = kprof::open_track(prof, kprof::per_block);
  kprof::Span span = kprof::profile_start(track);
  for (uint32_t item = 0; item < call.items; ++item) {
    work(pack_ticks);
    span = kprof::profile_lap(track, span, R_PACK);
  }
  for (uint32_t i = 1; i < call.num_places(); ++i) {
    const uint32_t peer = call.peer(i), slot = slot_of(call.place(), peer);
    tell(call, call.packed, peer);
    span = kprof::profile_lap(track, span, R_SEND, kprof::payload<R_SEND>(peer / num_blocks(), slot));
  }
  for (uint32_t i = 1; i < call.num_places(); ++i) {
    const uint32_t peer = call.peer(i), slot = slot_of(peer, call.place());
    wait_for(call, call.packed, peer);
    span = kprof::profile_lap(track, span, R_WAIT, kprof::payload<R_WAIT>(peer / num_blocks(), slot));
  }
  for (uint32_t item = 0; item < call.items; ++item) {
    work(reduce_ticks);
    span = kprof::profile_lap(track, span, R_REDUCE);
  }
}

extern "C" uint64_t ticks_per_second() { return kRealtimeTicksPerSecond; }

extern "C" int run_exchange(const Call* call, int blocks, void* stream, const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(exchange, blocks, 1, stream, 0, *call, kprof::make_buffer(*buffer));
}
