// A kernel that records a known number of events, and can hang after it has: then every block says so.
#include <kprof/kprof.h>

using namespace kprof::platform;

__global__ void emit(uint32_t num_events, uint32_t* is_hanging, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_block);
  for (uint32_t i = 0; i < num_events; ++i) {
    const kprof::Span span = kprof::profile_start(track);
    kprof::profile_stop(track, span, 1, i);
  }
  if (is_hanging == nullptr) return;
  const uint64_t begin_ticks = realtime_ticks();
  for (kprof::WaitSpan waiting = kprof::profile_start(track);;) {
    pause();
    // Read before still_waiting reads its clock: then it has told of the wait.
    const bool is_late = realtime_ticks() - begin_ticks > 2 * kprof::kLateTicks;
    kprof::still_waiting(track, waiting, 2, 0, {6u, 7u});
    if (is_late) store_system(is_hanging + block_id(), 1u);
  }
}

extern "C" int emit_events(uint32_t num_events, uint32_t* is_hanging, const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(emit, 2, host_warp_width(), nullptr, 0, num_events, is_hanging, kprof::make_buffer(*buffer));
}
