// Blocks of one thread, each of which waits until a word of its own holds kLetGo.
#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

using namespace kprof::platform;

constexpr uint32_t kLetGo = 2;

__global__ void wait_for_words(const uint32_t* words, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  const uint32_t slot = block_id();
  kprof::WaitSpan span = kprof::profile_start(track);
  uint32_t held;
  while ((held = load_system(words + slot)) < kLetGo) {
    kprof::still_waiting(track, span, R_WAIT, kprof::payload<R_WAIT>(slot), {held, kLetGo});
    pause();
  }
  kprof::profile_stop(track, span, R_WAIT, kprof::payload<R_WAIT>(slot));
}

extern "C" int run(const uint32_t* words, int num_blocks, const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(wait_for_words, num_blocks, 1, nullptr, 0, words, kprof::make_buffer(*buffer));
}
