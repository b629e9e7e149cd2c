// Every rank packs some items, tells all others, waits for all others, and reduces as many items. Work lasts a time by
// the clock, longer where a rank is slow: cores that are faster at times would be other causes than the planted one.
// One block: on the CPU target, blocks of a rank take turns.
#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

using namespace kprof::platform;

struct Call {
  uint64_t started;  // a flag for each pair of ranks: that of rank b which rank a sets is a * num_ranks + b
  uint64_t packed;
  uint32_t rank;
  uint32_t num_ranks;
  uint32_t epoch;
  uint32_t items;
  uint32_t pack_ticks;
  uint32_t reduce_ticks;
};

KPROF_DEVICE void work(uint32_t ticks) {
  const uint64_t begin = realtime_ticks();
  while (realtime_ticks() - begin < ticks) {
  }
}

KPROF_DEVICE void tell(const Call& call, uint64_t flags, uint32_t peer) {
  fence_release_system();
  store_system(reinterpret_cast<uint32_t*>(flags) + call.rank * call.num_ranks + peer, call.epoch);
}

KPROF_DEVICE void wait_for(const Call& call, uint64_t flags, uint32_t peer) {
  const uint32_t* flag = reinterpret_cast<uint32_t*>(flags) + peer * call.num_ranks + call.rank;
  // A rank has a core of its own; one that sleeps wakes up 50 us later.
  for (uint32_t looks = 0; load_system(flag) < call.epoch; ++looks) {
    if (looks >= 1u << 20) pause();
  }
  fence_acquire_system();
}

__global__ void exchange(Call call, kprof::Buffer prof) {
  // Nothing is recorded before all have begun.
  for (uint32_t peer = 0; peer < call.num_ranks; ++peer) tell(call, call.started, peer);
  for (uint32_t peer = 0; peer < call.num_ranks; ++peer) wait_for(call, call.started, peer);
  kprof::Track track = kprof::open_track(prof, kprof::per_block);
  kprof::Span span = kprof::profile_start(track);
  for (uint32_t item = 0; item < call.items; ++item) {
    work(call.pack_ticks);
    span = kprof::profile_lap(track, span, R_PACK);
  }
  for (uint32_t i = 1; i < call.num_ranks; ++i) {
    const uint32_t peer = (call.rank + i) % call.num_ranks;
    tell(call, call.packed, peer);
    span = kprof::profile_lap(track, span, R_SEND, kprof::payload<R_SEND>(peer, 0));
  }
  for (uint32_t i = 1; i < call.num_ranks; ++i) {
    const uint32_t peer = (call.rank + i) % call.num_ranks;
    wait_for(call, call.packed, peer);
    span = kprof::profile_lap(track, span, R_WAIT, kprof::payload<R_WAIT>(peer, 0));
  }
  for (uint32_t item = 0; item < call.items; ++item) {
    work(call.reduce_ticks);
    span = kprof::profile_lap(track, span, R_REDUCE);
  }
}

extern "C" uint64_t ticks_per_second() { return kRealtimeTicksPerSecond; }

extern "C" int run_exchange(const Call* call, void* stream, const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(exchange, 1, 1, stream, 0, *call, kprof::make_buffer(*buffer));
}
