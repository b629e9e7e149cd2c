// Two ranks that prepare, tell each other, wait for each other and finish; one may take longer to prepare.
//
// What ranks do lasts as long as the clock says, not as long as a processor needs: so a call with and a call without
// the planted delay differ by the delay and by little else, however busy the machine is.
#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

using namespace kprof::platform;

namespace {

KPROF_DEVICE void spin_ns(uint64_t duration_ns) {
  const uint64_t end = realtime_ticks() + duration_ns * (kRealtimeTicksPerSecond / 1000000) / 1000;
  while (realtime_ticks() < end) pause();
}

// `flags` has a word per (rank, block), in memory that all ranks share; block b talks to block b of the next rank.
__global__ void exchange(uint32_t* flags, uint32_t rank, uint32_t num_ranks, uint32_t epoch, uint64_t prepare_ns,
                         uint64_t finish_ns, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_block);
  const uint32_t from = (rank + num_ranks - 1) % num_ranks, to = (rank + 1) % num_ranks;
  kprof::Span span = kprof::profile_start(track);
  spin_ns(prepare_ns);
  span = kprof::profile_lap(track, span, R_PREPARE, 0);
  fence_release_system();
  store_system(&flags[rank * num_blocks() + block_id()], epoch);
  span = kprof::profile_lap(track, span, R_SEND, kprof::payload<R_SEND>(to, block_id()));
  while (load_system(&flags[from * num_blocks() + block_id()]) < epoch) pause();
  fence_acquire_system();
  span = kprof::profile_lap(track, span, R_WAIT, kprof::payload<R_WAIT>(from, block_id()));
  spin_ns(finish_ns);
  kprof::profile_stop(track, span, R_FINISH, 0);
}

}  // namespace

extern "C" int what_if_exchange(uint32_t* flags, uint32_t rank, uint32_t num_ranks, uint32_t epoch, uint64_t prepare_ns,
                                uint64_t finish_ns, int num_blocks, const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(exchange, num_blocks, 1, nullptr, 0, flags, rank, num_ranks, epoch, prepare_ns, finish_ns,
                      kprof::make_buffer(*buffer));
}
