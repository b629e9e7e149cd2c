// A ring all-gather, written from docs/own_kernel.md alone. Each rank has a part of the numbers; in every step it
// passes on the part that came last, and waits for the next one, until it has all. A block has a slice of every part.
#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

using namespace kprof::platform;

constexpr uint32_t kMaxRanks = 8;

struct Call {
  const float* part;  // [part_size] of this rank
  float* gathered;    // [world_size][part_size]
  // By rank, as this rank sees it: [2][world_size][part_size] numbers, then [2][world_size][num_blocks] flags.
  char* heaps[kMaxRanks];
  uint32_t part_size, rank, world_size;
  uint32_t epoch;  // 1 for the first call. Calls take turns with the two halves of a heap.

  __device__ float* numbers(uint32_t owner, uint32_t source) const {
    return reinterpret_cast<float*>(heaps[owner]) + ((epoch & 1u) * world_size + source) * part_size;
  }
  __device__ uint32_t* flag(uint32_t owner, uint32_t source) const {
    auto* flags = reinterpret_cast<uint32_t*>(reinterpret_cast<float*>(heaps[owner]) + 2 * world_size * part_size);
    return flags + ((epoch & 1u) * world_size + source) * num_blocks() + block_id();
  }
};

__device__ void copy(float* to, const float* from, uint32_t part_size) {
  for (uint32_t i = block_id() * num_threads() + thread_id(); i < part_size; i += num_blocks() * num_threads()) {
    to[i] = from[i];
  }
  sync_block();
}

__global__ void ring_all_gather(Call call, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_block);
  const uint32_t world = call.world_size, left = (call.rank + world - 1) % world, right = (call.rank + 1) % world;
  const uint32_t bytes = call.part_size / num_blocks() * 4;
  kprof::Span span = kprof::profile_start(track);
  copy(call.gathered + call.rank * call.part_size, call.part, call.part_size);
  span = kprof::profile_lap(track, span, R_FILL, kprof::payload<R_FILL>(0u, bytes));
  for (uint32_t step = 1; step < world; ++step) {
    const uint32_t sent = (call.rank + world + 1 - step) % world, next = (call.rank + world - step) % world;
    const uint32_t slot = step * num_blocks() + block_id();
    copy(call.numbers(right, sent), call.gathered + sent * call.part_size, call.part_size);
    // All threads of the block have stored: the fence of the one that sets the flag covers what it saw at the barrier.
    if (thread_id() == 0) {
      fence_release_system();
      store_system(call.flag(right, sent), call.epoch);
    }
    kprof::WaitSpan wait = kprof::profile_lap(track, span, R_PASS, kprof::payload<R_PASS>(right, slot));
    uint32_t seen = 0;
    while ((seen = load_system(call.flag(call.rank, next))) != call.epoch) {
      kprof::still_waiting(track, wait, R_WAIT, kprof::payload<R_WAIT>(left, slot), {seen, call.epoch});
      pause();
    }
    fence_acquire_system();
    span = kprof::profile_lap(track, wait, R_WAIT, kprof::payload<R_WAIT>(left, slot));
    copy(call.gathered + next * call.part_size, call.numbers(call.rank, next), call.part_size);
    span = kprof::profile_lap(track, span, R_FILL, kprof::payload<R_FILL>(step, bytes));
  }
}

extern "C" int launch(const kprof::LaunchBuffer* buffer, void* stream, uint32_t num_blocks, uint32_t num_threads,
                      const float* part, float* gathered, uint64_t const* heaps, uint32_t part_size, uint32_t rank,
                      uint32_t world_size, uint32_t epoch) {
  Call call{part, gathered, {}, part_size, rank, world_size, epoch};
  for (uint32_t peer = 0; peer < world_size; ++peer) call.heaps[peer] = reinterpret_cast<char*>(heaps[peer]);
  return KPROF_LAUNCH(ring_all_gather, num_blocks, num_threads, stream, 0, call, kprof::make_buffer(*buffer));
}
