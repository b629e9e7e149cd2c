// Measures what an event costs on this device: every warp writes empty spans, and both clocks time it.
//
// The recorder runs this once when it is created, with as many warps per processor as the benchmark of the probe.
#include <kprof/kprof.h>

using namespace kprof::platform;

namespace {

constexpr int kThreadsPerBlock = 256;

struct Elapsed {
  uint64_t realtime_ticks;
  uint64_t cycles;
};

__global__ void empty_spans(Elapsed* elapsed, uint32_t num_pairs, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  const uint64_t begin_cycles = cycle_ticks(), begin_ticks = realtime_ticks();
  KPROF_UNROLL(1)
  for (uint32_t i = 0; i < num_pairs; ++i) {
    const kprof::Span span = kprof::profile_start(track);
    kprof::profile_stop(track, span, 1, i);
  }
  const uint64_t end_ticks = realtime_ticks(), end_cycles = cycle_ticks();
  const uint32_t track_idx = (block_id() * num_threads() + thread_id()) / warp_width();
  if (lane_id() == 0) elapsed[track_idx] = Elapsed{end_ticks - begin_ticks, end_cycles - begin_cycles};
}

// One block of 8 warps on every processor; on the CPU target one block of one warp.
int num_blocks_here() { return num_processors() > 0 ? num_processors() : 1; }
int num_threads_here() { return num_processors() > 0 ? kThreadsPerBlock : host_warp_width(); }

}  // namespace

extern "C" int kprof_probe_num_tracks() { return num_blocks_here() * num_threads_here() / host_warp_width(); }

extern "C" int kprof_probe_empty_spans(void* elapsed, uint32_t num_pairs, const kprof::LaunchBuffer* buffer,
                                       void* stream) {
  return KPROF_LAUNCH(empty_spans, num_blocks_here(), num_threads_here(), stream, 0, static_cast<Elapsed*>(elapsed),
                      num_pairs, kprof::make_buffer(*buffer));
}

extern "C" const char* kprof_error_text(int error) { return error_text(error); }
