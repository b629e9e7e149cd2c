// my_kernel adds up rows of numbers, one block per row, and gives the sums to every rank.
//
// A block adds up its row tile by tile, stores the sum in the mailbox of every rank, and waits until all ranks have
// sent theirs for the same row. One source for NVIDIA, AMD and the CPU: kprof::platform has the names that differ.
#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

using namespace kprof::platform;

constexpr uint32_t kMaxRanks = 8;
constexpr uint32_t kMaxThreads = 256;
constexpr uint32_t kTile = 1024;

struct Call {
  const float* x;                  // the rows, one behind the other
  const uint32_t* offsets;         // [num_blocks + 1]: row i is x[offsets[i]] to x[offsets[i + 1]]
  float* sums;                     // [world_size][num_blocks]
  uint64_t* mailboxes[kMaxRanks];  // by rank: its mailbox as this rank sees it, [2][world_size][num_blocks]
  uint32_t rank, world_size;
  uint32_t epoch;  // 1 for the first call, 2 for the second

  // Where `source` puts its sum of a row for `owner`. Calls take turns with the two halves of a mailbox.
  __device__ uint64_t* word(uint32_t owner, uint32_t source, uint32_t row) const {
    return mailboxes[owner] + ((epoch & 1u) * world_size + source) * num_blocks() + row;
  }
};

// The sum of a row, in every thread of the block.
__device__ float add_up(const Call& call, uint32_t row, kprof::Track& track) {
  KPROF_SHARED(float, partial, kMaxThreads);
  const uint32_t first = call.offsets[row], end = call.offsets[row + 1];
  kprof::profile_value(track, R_TILES, (end - first + kTile - 1) / kTile);
  float sum = 0;
  for (uint32_t tile = first; tile < end; tile += kTile) {
    kprof::Span span = kprof::profile_start(track);
    for (uint32_t i = tile + thread_id(); i < at_most(tile + kTile, end); i += num_threads()) sum += call.x[i];
    sync_block();
    kprof::profile_stop(track, span, R_ADD, kprof::payload<R_ADD>(row));
  }
  partial[thread_id()] = sum;
  sync_block();
  float total = 0;
  for (uint32_t i = 0; i < num_threads(); ++i) total += partial[i];
  return total;
}

__global__ void my_kernel(Call call, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_block);
  const uint32_t row = block_id();
  const float sum = add_up(call, row, track);
  kprof::profile_mark(track, R_KNOWN);

  // The sum and the number of the call travel in one word: whoever sees the number has the sum.
  uint32_t bits;
  copy_bits(&bits, sum);
  const uint64_t message = uint64_t{call.epoch} << 32 | bits;
  kprof::Span span = kprof::profile_start(track);
  for (uint32_t peer = 0; peer < call.world_size; ++peer) {
    if (thread_id() == 0) store_system(call.word(peer, call.rank, row), message);
    span = kprof::profile_lap(track, span, R_SEND, kprof::payload<R_SEND>(peer, row));
  }
  for (uint32_t peer = 0; peer < call.world_size; ++peer) {
    kprof::WaitSpan wait = span;
    uint64_t seen = 0;
    while ((seen = load_system(call.word(call.rank, peer, row))) >> 32 != call.epoch) {
      // Says once that the wait lasts long: when the kernel hangs, kprof tells who waits for whom.
      kprof::still_waiting(track, wait, R_WAIT, kprof::payload<R_WAIT>(peer, row),
                           {static_cast<uint32_t>(seen >> 32), call.epoch});
      kprof::platform::pause();
    }
    span = kprof::profile_lap(track, wait, R_WAIT, kprof::payload<R_WAIT>(peer, row));
    if (thread_id() == 0) copy_bits(&call.sums[peer * num_blocks() + row], static_cast<uint32_t>(seen));
  }
}

// Called from Python. Returns 0 or the runtime's error code.
extern "C" int launch(const kprof::LaunchBuffer* buffer, void* stream, uint32_t num_blocks, uint32_t num_threads,
                      const float* x, const uint32_t* offsets, float* sums, uint64_t* const* mailboxes, uint32_t rank,
                      uint32_t world_size, uint32_t epoch) {
  Call call{x, offsets, sums, {}, rank, world_size, epoch};
  for (uint32_t peer = 0; peer < world_size; ++peer) call.mailboxes[peer] = mailboxes[peer];
  return KPROF_LAUNCH(my_kernel, num_blocks, num_threads, stream, 0, call, kprof::make_buffer(*buffer));
}
